"""From what a caller asks to prompt token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jinja2
import numpy as np

from macspec.engine.prefix_cache import common_length
from macspec.engine.repeated_text import RepeatedText
from macspec.errors import RequestError, UnsupportedError
from macspec.request import GenerationRequest


def prompt_tokens(request: GenerationRequest, tokenizer: Any, vocab: int) -> list[int]:
    """Token ids of the prompt: messages through the chat template, text as it is, ids checked against the vocabulary.

    Raises:
        RequestError: nothing is left to answer, an id is outside the vocabulary, or the template refuses the messages.
    """
    if request.tokens is not None:
        wrong = next((token for token in request.tokens if not 0 <= token < vocab), None)
        if wrong is not None:
            raise RequestError(f"Token id {wrong} is outside the vocabulary of {vocab} tokens.", param="tokens")
        return list(request.tokens)
    if request.prompt is not None:
        tokens = list(tokenizer.encode(request.prompt))
        if not tokens:
            raise RequestError("The prompt has no tokens; write something to continue.", param="prompt")
        return tokens
    return _render(request, tokenizer)


def takes_effort(tokenizer: Any) -> bool:
    """Whether the chat template has levels of thinking: a variable ``reasoning_effort``."""
    template = getattr(tokenizer, "chat_template", None)
    return isinstance(template, str) and "reasoning_effort" in template


def repeated_prefix(request: GenerationRequest, tokenizer: Any, prompt: Sequence[int]) -> int | None:
    """How many prompt tokens the next turn will surely begin with: all but the opening of the answer.

    None when that is unknown, as for plain prompts and answers that were begun by the caller.
    """
    if request.messages is None or request.continue_final_message:
        return None
    try:
        opened, closed = (_template(request, tokenizer, opening=opening, tokenize=False) for opening in (True, False))
        # Tokenising the opening alone is enough where its tokens end the prompt; the history may be long.
        if opened.startswith(closed):
            opening = list(tokenizer.encode(opened[len(closed) :], add_special_tokens=False))
            if 0 < len(opening) < len(prompt) and list(prompt[-len(opening) :]) == opening:
                return len(prompt) - len(opening)
        tokens = _template(request, tokenizer, opening=False)
    except RequestError:
        return None
    return common_length(np.array(prompt, np.int32), np.array(tokens, np.int32)) or None


def _render(request: GenerationRequest, tokenizer: Any) -> list[int]:
    if not getattr(tokenizer, "has_chat_template", getattr(tokenizer, "chat_template", None)):
        raise UnsupportedError(
            "This model has no chat template, so it cannot take messages; send a plain prompt.", param="messages"
        )
    tokens: list[int] = _template(request, tokenizer, opening=True)
    if not tokens:
        raise RequestError("The messages render to an empty prompt.", param="messages")
    return tokens


def _template(request: GenerationRequest, tokenizer: Any, *, opening: bool, tokenize: bool = True) -> Any:
    """The messages through the chat template, with or without the opening of the answer: token ids, or text."""
    options = dict(request.template_options)
    if request.thinking is not None:
        options["enable_thinking"] = request.thinking
    if request.tools:
        options["tools"] = list(request.tools)
    if request.continue_final_message:
        opening, options["continue_final_message"] = False, True
    messages = [dict(message) for message in request.messages or ()]
    try:
        text = str(tokenizer.apply_chat_template(messages, add_generation_prompt=opening, tokenize=False, **options))
        return RepeatedText.of(tokenizer).encode(text) if tokenize else text
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise RequestError(f"The model's chat template refuses these messages: {error}", param="messages") from error
