"""langchain-openai against ``URL MODEL``: text, stream, tool, structured answer and error, printed as JSON."""

from __future__ import annotations

import json
import sys
from typing import Literal

import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict

url, model = sys.argv[1:]


class Weather(BaseModel):
    """The weather of a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Bern", "Rome"]


chat = ChatOpenAI(base_url=url, api_key="x", model=model, max_tokens=24, timeout=300)
caller = chat.bind_tools([Weather], tool_choice="Weather")
found = {
    "whole": chat.invoke("Say hello.").content,
    "streamed": "".join(chunk.content for chunk in chat.stream("Say hello.")),
    "tool": caller.invoke("Is it warm in Rome?").tool_calls[0]["args"],
    "structured": chat.with_structured_output(Weather, method="json_schema").invoke("Is it warm in Rome?").city,
}
try:
    chat.bind(temperature=5).invoke("Say hello.")
except openai.BadRequestError as error:
    found["error"] = error.param
print(json.dumps(found))
