"""``macspec generate``: answer one prompt and print it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from macspec.cli_options import add_engine_options, add_request_options, engine_options, request_options
from macspec.download import ensure
from macspec.errors import RequestError
from macspec.request import GenerationRequest

if TYPE_CHECKING:
    from macspec.api import Answer

#: Tokens an answer may have when nobody says otherwise: a small model may never stop by itself.
DEFAULT_MAX_TOKENS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("prompt", help="the prompt; - reads it from standard input")
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_engine_options(parser)
    add_request_options(parser, max_tokens=DEFAULT_MAX_TOKENS)


def run(options: argparse.Namespace) -> int:
    """Answer and print; text appears as it is made unless JSON was asked for."""
    request = _request(options)
    request.check()
    if request.sampling.logprobs is not None and not options.json:
        raise RequestError("--logprobs has nowhere to go in plain text; add --json.", param="logprobs")
    ensure(options)
    from macspec.api import collect
    from macspec.progress import load_progress
    from macspec.runtime import Runtime

    with load_progress() as progress:
        engine = Runtime.load(**engine_options(options), progress=progress, profile=request.depth == "auto")
    try:
        events = engine.generate(request)
        if options.json:
            found = [_values(answer, request) for answer in collect(events)]
            print(json.dumps(found[0] if len(found) == 1 else found, ensure_ascii=False))
        else:
            _print_text(events, many=request.sampling.n > 1)
    finally:
        engine.close()
    return 0


def _request(options: argparse.Namespace) -> GenerationRequest:
    text = _standard_input() if options.prompt == "-" else options.prompt
    if not text.strip():
        raise RequestError("The prompt is empty; write something to answer.", param="prompt")
    if options.raw:
        if options.system:
            raise RequestError("--raw takes no system prompt: nothing would mark it as one.", param="system")
        return GenerationRequest(prompt=text, **request_options(options))
    messages = [{"role": "system", "content": options.system}] if options.system else []
    messages.append({"role": "user", "content": text})
    return GenerationRequest(messages=tuple(messages), **request_options(options))


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise RequestError("Standard input is not UTF-8; convert it first.", param="prompt") from None


def _print_text(events: Any, *, many: bool) -> None:
    from macspec.request import Started, Text

    ended = True
    for event in events:
        if isinstance(event, Started) and many:
            print(f"{'' if event.index == 0 else chr(10)}--- {event.index + 1} (seed {event.seed})")
        if isinstance(event, Text) and event.section == "answer" and event.text:
            sys.stdout.write(event.text)
            sys.stdout.flush()
            ended = event.text.endswith("\n")
    if not ended:
        print()


def _values(answer: Answer, request: GenerationRequest) -> dict[str, Any]:
    stats = answer.stats
    values: dict[str, Any] = {
        "text": answer.text,
        "tokens": answer.tokens,
        "finish_reason": answer.finish_reason,
        "seed": answer.seed,
        "stats": {
            **stats.to_wire(),
            "acceptance_length": round(stats.acceptance_length, 4),
        },
    }
    if answer.thinking:
        values["thinking"] = answer.thinking
    if answer.tool_calls:
        values["tool_calls"] = [{"name": call.name, "arguments": call.arguments} for call in answer.tool_calls]
    if request.sampling.logprobs is not None:
        values["logprobs"] = [info.to_wire() for info in answer.token_infos]
    return values
