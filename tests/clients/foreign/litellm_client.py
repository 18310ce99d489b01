"""litellm against ``URL MODEL``: a turn, a stream, a tool, token counts and an error, printed as JSON."""

from __future__ import annotations

import json
import sys

import litellm

url, model = sys.argv[1:]
ask = [{"role": "user", "content": "Say hello."}]
fields = {"model": f"openai/{model}", "api_base": url, "api_key": "x", "messages": ask, "max_tokens": 24}
schema = {"type": "object", "properties": {"city": {"enum": ["Bern", "Rome"]}}, "required": ["city"]}
schema["additionalProperties"] = False
tool = {"type": "function", "function": {"name": "weather", "parameters": schema}}

whole = litellm.completion(**fields)
called = litellm.completion(**fields, tools=[tool], tool_choice="required")
found = {
    "whole": whole.choices[0].message.content,
    "usage": whole.usage.completion_tokens,
    "streamed": "".join(c.choices[0].delta.content or "" for c in litellm.completion(**fields, stream=True)),
    "tool": json.loads(called.choices[0].message.tool_calls[0].function.arguments),
}
try:
    litellm.completion(**fields, temperature=5)
except litellm.BadRequestError as error:
    found["error"] = "temperature" in str(error)
print(json.dumps(found))
