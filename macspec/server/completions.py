"""``POST /v1/completions``: prompts without a chat template."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from macspec.errors import RequestError
from macspec.request import Event, Finished, GenerationRequest, PrefillProgress, SamplingParams, Text, TokenInfo
from macspec.server import convert
from macspec.server.answers import Outcome, Service, finish_reason, logprob_value
from macspec.server.chat import Progress, envelope
from macspec.server.schemas import CompletionBody
from macspec.server.streams import comment, frame
from macspec.worker.protocol import EngineInfo

#: OpenAI's default, small because this endpoint has no natural end.
DEFAULT_MAX_TOKENS = 16


def plans(body: CompletionBody, service: Service, info: EngineInfo) -> list[convert.Plan]:
    """One plan per prompt."""
    config = service.config
    sampling = replace(
        convert.sampling(body, config),
        max_tokens=convert.limit(body.max_tokens or DEFAULT_MAX_TOKENS, info),
        stop=convert.stops(body.stop),
        n=convert.choices(body.n, config),
        logprobs=body.logprobs,
        grammar=convert.guided_grammar(body),
    )
    found = []
    for request in _prompts(body.prompt, sampling, config.max_choices):
        made = replace(request, depth=convert.depth(body.depth), use_cache=body.cache_prompt is not False)
        made.check()
        found.append(convert.Plan(made))
    return found


def _prompts(prompt: Any, sampling: SamplingParams, most: int) -> list[GenerationRequest]:
    """A text, a list of texts, token ids, or lists of token ids."""
    several = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], (str, list))
    values = prompt if several else [prompt]
    if len(values) > most:
        raise RequestError(f"prompt has {len(values)} entries; at most {most} are possible.", param="prompt")
    requests = []
    for index, value in enumerate(values):
        where = f"prompt[{index}]" if several else "prompt"
        if isinstance(value, str) and value:
            requests.append(GenerationRequest(prompt=value, sampling=sampling))
        elif isinstance(value, list) and value and all(type(token) is int for token in value):
            requests.append(GenerationRequest(tokens=tuple(value), sampling=sampling))
        else:
            raise RequestError(f"{where} should be a text or a list of token ids, and not be empty.", param=where)
    return requests


async def complete(service: Service, body: CompletionBody, who: str) -> dict[str, Any]:
    """The whole answer as one body."""
    info = await service.check_model(body.model)
    planned = plans(body, service, info)
    head = envelope(body.model, service, info, "cmpl-")
    per_prompt = planned[0].request.sampling.n
    outcome = Outcome()
    async with aclosing(cast(Any, service.events(planned, who, convert.param_names(body)))) as events:
        async for event in events:
            outcome.add(_as_text(event), per_prompt)
    choices = [
        _choice(
            index, choice.text, finish_reason(choice.reason, False), _Offsets().logprobs(choice.tokens, body.logprobs)
        )
        for index, choice in sorted(outcome.choices.items())
    ]
    return {**head.wrap("text_completion", choices), "usage": outcome.usage(), "timings": outcome.timings()}


def _as_text(event: Event) -> Event:
    """Without a chat template nothing is set apart as thinking."""
    return replace(event, section="answer") if isinstance(event, Text) else event


def _choice(index: int, text: str, finish: str | None, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


class _Offsets:
    """Log-probabilities in the older form, with where in the text each token begins."""

    def __init__(self) -> None:
        self._at = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def logprobs(self, tokens: list[TokenInfo] | tuple[TokenInfo, ...], wanted: int | None) -> dict[str, Any] | None:
        """The object for these tokens, which follow the ones before; None if not wanted."""
        if wanted is None:
            return None
        offsets = []
        for token in tokens:
            offsets.append(self._at)
            self._at += self._length(token)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [logprob_value(token.logprob) for token in tokens],
            "top_logprobs": [{other.text: logprob_value(other.logprob) for other in token.top} for token in tokens],
            "text_offset": offsets,
        }

    def _length(self, token: TokenInfo) -> int:
        """Characters that end with this token: its own text, unless it holds a part of one."""
        if "\ufffd" not in token.text and not self._decoder.getstate()[0]:
            return len(token.text)
        return len(self._decoder.decode(token.raw))


async def stream(service: Service, body: CompletionBody, who: str) -> AsyncGenerator[bytes, None]:
    """The answer as server-sent events."""
    info = await service.check_model(body.model)
    planned = plans(body, service, info)
    head = envelope(body.model, service, info, "cmpl-")
    per_prompt = planned[0].request.sampling.n
    usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    outcome = Outcome()
    offsets: dict[int, _Offsets] = {}
    progress = Progress(body.return_progress)
    async with aclosing(cast(Any, service.events(planned, who, convert.param_names(body)))) as events:
        async for found in events:
            event = _as_text(found)
            outcome.add(event, per_prompt)
            extra: dict[str, Any] = {}
            if isinstance(event, PrefillProgress):
                asked = progress.of(event, outcome)
                if asked is None:
                    yield comment(f"prefill {event.done}/{event.total}")
                    continue
                choice, extra = _choice(event.index, "", None, None), asked
            elif isinstance(event, Text) and (event.text or (event.tokens and body.logprobs is not None)):
                logprobs = offsets.setdefault(event.index, _Offsets()).logprobs(event.tokens, body.logprobs)
                choice = _choice(event.index, event.text, None, logprobs)
            elif isinstance(event, Finished):
                choice = _choice(event.index, "", finish_reason(event.reason, False), None)
                extra["timings"] = outcome.timings()
            else:
                continue
            yield frame({**head.wrap("text_completion", [choice]), **extra})
    if usage:
        tail = head.wrap("text_completion", [])
        yield frame({**tail, "usage": outcome.usage(), "timings": outcome.timings()})
    yield b"data: [DONE]\n\n"
