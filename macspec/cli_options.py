"""Every option of a request under its own name: for command lines, and for ``/set`` in the chat. No MLX here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from macspec.download import add_download_options
from macspec.errors import RequestError
from macspec.limits import check_numbers
from macspec.request import GenerationRequest, Grammar, GrammarKind, SamplingParams

DRAFTER_HELP = "a drafter, NAME+lookup, lookup, or none (default: the model's own with prompt lookup beside it)"

T = TypeVar("T", SamplingParams, GenerationRequest)

_ON, _OFF = ("on", "yes", "true", "1"), ("off", "no", "false", "0")
#: Words that put a setting back to its default.
_RESET = ("none", "default")
_SAMPLING_FIELDS = {f.name: f for f in fields(SamplingParams)}
_REQUEST_FIELDS = {f.name: f for f in fields(GenerationRequest)}


@dataclass(frozen=True)
class _Option:
    """One setting: how its text is read and shown on the command line."""

    name: str
    help: str
    #: Text to value; gets the setting's name for its sentence.
    read: Callable[[str, str], Any]
    metavar: str | None = None
    #: On the command line it may be given several times, and the values are joined.
    several: bool = False
    #: On the command line it is a switch that means this text.
    switch: str | None = None


def add_request_options(parser: argparse.ArgumentParser, max_tokens: int | None = None) -> None:
    """Add every option of a request; `request_options` reads them. ``max_tokens`` is the default of that option."""
    for title, options in _GROUPS.items():
        group: Any = parser.add_argument_group(title)
        if title == _STRUCTURE:
            group = group.add_mutually_exclusive_group()
        for option in options:
            flag, help_text = "--" + option.name.replace("_", "-"), option.help
            if option.name == "max_tokens" and max_tokens is not None:
                help_text += f" (default {max_tokens})"
            if option.switch is not None:
                group.add_argument(flag, dest=option.name, action="store_const", const=[option.switch], help=help_text)
            else:
                group.add_argument(
                    flag, dest=option.name, action="append", metavar=option.metavar, help=help_text, default=None
                )
    parser.set_defaults(default_max_tokens=max_tokens)


def request_options(options: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `GenerationRequest` from parsed options: ``sampling`` and whatever else was given.

    Raises:
        RequestError: a value is wrong; the sentence says what it may be.
    """
    request = GenerationRequest()
    if options.default_max_tokens is not None:
        request = replace(request, sampling=replace(request.sampling, max_tokens=options.default_max_tokens))
    given = {"sampling"}
    for group in _GROUPS.values():
        for option in group:
            texts = getattr(options, option.name)
            if texts is None:
                continue
            if option.several:
                value = _joined([option.read(option.name, text) for text in texts])
            else:
                value = option.read(option.name, texts[-1])
            if option.name not in _SAMPLING_FIELDS and option.name in _REQUEST_FIELDS:
                given.add(option.name)
            request = _changed(request, option.name, value)
    check_numbers(request.sampling)
    return {name: getattr(request, name) for name in given}


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add what decides which models are loaded; `engine_options` reads them."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="NAME",
        help="registry name, folder or hub id; default: on a Mac the best known pair that fits and is here, else the "
        "embedded model",
    )
    group.add_argument("--drafter", metavar="NAME", help=DRAFTER_HELP)
    group.add_argument("--context", type=int, metavar="TOKENS", help="hold at most this many tokens")
    group.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="cast the weights to this type")
    group.add_argument("--kv-bits", type=int, choices=(4, 8), help="keep the target's keys and values in so many bits")
    group.add_argument(
        "--drafter-context",
        type=int,
        metavar="TOKENS",
        help="let the drafter look back on so many tokens only: less memory and time on long prompts, the same text",
    )
    group.add_argument("--disk-cache", type=float, metavar="GB", help="keep prompts on disk across runs, at most GB")
    group.add_argument(
        "--kernels",
        choices=("off", "probe", "force"),
        help="Metal kernels: none, those that prove right and faster (default), or all that are right",
    )
    group.add_argument(
        "--exact",
        action="store_const",
        const=True,
        help="give plain decoding's text also where rounding could turn a choice; macspec doctor says what it costs",
    )
    add_download_options(group)


def engine_options(options: argparse.Namespace) -> dict[str, Any]:
    """The engine options that were given, as keyword arguments of ``Engine.load``."""
    names = ("model", "drafter", "context", "dtype", "kv_bits", "drafter_context", "kernels", "exact")
    values = {name: getattr(options, name) for name in names}
    if options.disk_cache is not None:
        if not options.disk_cache > 0:
            raise RequestError(f"--disk-cache is {options.disk_cache:g} GB; it must be above 0.", param="disk_cache")
        values["disk_cache_bytes"] = int(options.disk_cache * 1e9)
    return {name: value for name, value in values.items() if value is not None}


def option_names() -> list[str]:
    """The names `set_option` knows."""
    return [option.name for group in _GROUPS.values() for option in group]


def set_option(target: T, name: str, text: str) -> T:
    """A copy of sampling parameters, or of a request, with one setting read from its text.

    ``none`` and ``default`` put a setting back to its default. Hyphens and underscores mean the same.

    Raises:
        RequestError: no such setting, or a value that it cannot have; nothing is changed.
    """
    name, text = name.strip().replace("-", "_").lower(), text.strip()
    names = [known for known in option_names() if isinstance(target, GenerationRequest) or _field(known) in _SAMPLING]
    if name not in names and name != "grammar":
        raise RequestError(f"There is no setting {name!r}; use one of {', '.join(names)}.", param=name)
    if text.lower() in _RESET:
        value = _default(_field(name))
    elif name == "grammar":
        raise RequestError(
            "Set json_schema, json_object, regex, choice or lark; grammar none takes it off.", param=name
        )
    else:
        value = next(option for option in _all_options() if option.name == name).read(name, text)
    changed = _changed(target, name, value)
    check_numbers(changed.sampling if isinstance(changed, GenerationRequest) else changed)
    return changed


def _changed(target: T, name: str, value: Any) -> T:
    name = _field(name)
    if name in _SAMPLING and not isinstance(target, SamplingParams):
        name, value = "sampling", replace(target.sampling, **{name: value})
    return replace(target, **{name: value})


def _field(name: str) -> str:
    """The field a setting lives in."""
    return "grammar" if name in _GRAMMARS else name


def _default(name: str) -> Any:
    declared = _SAMPLING_FIELDS.get(name) or _REQUEST_FIELDS[name]
    return declared.default if declared.default_factory is MISSING else declared.default_factory()


def _joined(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: value for part in values for key, value in part.items()}
    if isinstance(values[0], Grammar):
        choices = [choice for part in values for choice in json.loads(part.value)]
        return Grammar("choice", json.dumps(choices, ensure_ascii=False))
    return tuple(item for part in values for item in part)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RequestError(f"{name} is {text!r}; use a number.", param=name) from None


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RequestError(f"{name} is {text!r}; use a whole number.", param=name) from None


def _switch(name: str, text: str, allowed: str = "on or off") -> bool:
    if text.lower() in _ON + _OFF:
        return text.lower() in _ON
    raise RequestError(f"{name} is {text!r}; use {allowed}.", param=name)


def _switch_or_auto(name: str, text: str) -> bool | None:
    return None if text.lower() == "auto" else _switch(name, text, "on, off or auto")


def _tokens(name: str, text: str) -> tuple[int, ...]:
    return tuple(_whole(name, part) for part in text.replace(",", " ").split())


def _biases(name: str, text: str) -> dict[int, float]:
    biases = {}
    for part in text.replace(",", " ").split():
        token, equals, bias = part.partition("=")
        if not equals:
            raise RequestError(f"{name} is {part!r}; write a token id and its bias, such as 1234=-5.", param=name)
        biases[_whole(name, token)] = _number(name, bias)
    return biases


def _stops(name: str, text: str) -> tuple[str, ...]:
    """One text as it is, or a JSON string or list of strings for several texts and for line breaks."""
    if text[:1] not in ('"', "["):
        return (text,)
    try:
        value = json.loads(text)
    except ValueError:
        return (text,)
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        return (text,)
    return tuple(found)


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise RequestError(f"{name} is not JSON: {error}.", param=name) from None
    if not isinstance(value, dict):
        raise RequestError(f"{name} is not a JSON object; write it in braces.", param=name)
    return value


def _depth(name: str, text: str) -> str:
    if text in ("auto", "full") or (text.isascii() and text.isdigit()):
        return text
    raise RequestError(f"depth is {text!r}; use auto, full or a number from 0 up.", param=name)


def _policy(name: str, text: str) -> str:
    from macspec.scheduler.policies import POLICIES

    number = text.removeprefix("fixed:")
    if (text in POLICIES and text != "fixed:N") or (number != text and number.isascii() and number.isdigit()):
        return text
    raise RequestError(f"There is no policy {text!r}; use one of {', '.join(POLICIES)}.", param=name)


def _grammar(kind: GrammarKind, *, file: bool) -> Callable[[str, str], Grammar]:
    def read(name: str, text: str) -> Grammar:
        if kind == "json_object":
            if not _switch(name, text):
                raise RequestError("To take a grammar off, set grammar to none.", param=name)
            return Grammar(kind)
        if file and (content := _file(name, text)) is not None:
            text = content
        if kind == "json_schema":
            try:
                json.loads(text)
            except ValueError as error:
                raise RequestError(
                    f"{name} is neither a file nor JSON ({error}); give a file's name or the schema itself.", param=name
                ) from None
        return Grammar(kind, text)

    return read


def _choices(name: str, text: str) -> Grammar:
    """One choice as it is, or a JSON list of several."""
    choices = [text]
    if text.startswith("["):
        try:
            choices = json.loads(text)
        except ValueError as error:
            raise RequestError(f"{name} begins like a list but is not JSON: {error}.", param=name) from None
        if not choices or not all(isinstance(choice, str) and choice for choice in choices):
            raise RequestError(f'{name} takes texts only, such as ["yes", "no"].', param=name)
    return Grammar("choice", json.dumps(choices, ensure_ascii=False))


def _file(name: str, text: str) -> str | None:
    """Content of the file that ``text`` names, None when there is no such file."""
    try:
        path = Path(text).expanduser()
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except (OSError, ValueError):
        # Too long for a file's name, or not UTF-8: then it is not a file meant to be read here.
        return None


_STRUCTURE = "structured output"
_GROUPS: dict[str, list[_Option]] = {
    "sampling": [
        _Option("temperature", "0 takes the best token, above 0 draws", _number, "T"),
        _Option("top_p", "draw among the best tokens that hold this much probability", _number, "P"),
        _Option("top_k", "draw among this many best tokens; 0 is off", _whole, "K"),
        _Option("min_p", "drop tokens less likely than this share of the likeliest", _number, "P"),
        _Option("seed", "same seed, same text", _whole, "N"),
        _Option("repetition_penalty", "above 1 repeats less, prompt included; 1 is off", _number, "X"),
        _Option("presence_penalty", "taken off tokens that are in the answer already", _number, "X"),
        _Option("frequency_penalty", "taken off for every time a token is in the answer", _number, "X"),
        _Option("penalty_window", "tokens the penalties look back on; 0 is all", _whole, "N"),
        _Option("logit_bias", "added to a token's logit; may be repeated", _biases, "ID=VALUE", several=True),
        _Option("banned_tokens", "token ids never to choose", _tokens, "ID,…", several=True),
        _Option("allowed_tokens", "choose among these token ids only", _tokens, "ID,…", several=True),
    ],
    "length and stopping": [
        _Option("max_tokens", "at most this many tokens", _whole, "N"),
        _Option("min_tokens", "no end before this many tokens", _whole, "N"),
        _Option("stop", "end before this text; may be repeated", _stops, "TEXT", several=True),
        _Option("stop_token_ids", "end at these token ids", _tokens, "ID,…", several=True),
        _Option("ignore_eos", "go on after the model's own end", _switch, switch="on"),
    ],
    _STRUCTURE: [
        _Option("json_schema", "answer with JSON of this schema", _grammar("json_schema", file=True), "FILE|JSON"),
        _Option("json_object", "answer with a JSON object", _grammar("json_object", file=False), switch="on"),
        _Option("regex", "answer with text that matches", _grammar("regex", file=False), "PATTERN"),
        _Option("choice", "answer with one of these texts; may be repeated", _choices, "TEXT", several=True),
        _Option("lark", "answer with text of this Lark grammar", _grammar("lark", file=True), "FILE|GRAMMAR"),
    ],
    "answers": [
        _Option("n", "this many answers, each with a seed of its own", _whole, "N"),
        _Option("logprobs", "log-probabilities of each token and of the N likeliest", _whole, "N"),
        _Option("thinking", "on, off, or auto for the model's own way", _switch_or_auto, "WHEN"),
        _Option("thinking_budget", "most tokens to think with", _whole, "N"),
        _Option("template_options", "variables for the chat template", _json_object, "JSON", several=True),
    ],
    "speculation (changes the speed, never the text)": [
        _Option("depth", "draft tokens per round: auto, full or a number; 0 is plain decoding", _depth, "D"),
        _Option("policy", "the rule that chooses the depth when it is auto", _policy, "NAME"),
        _Option(
            "coupled",
            "on, off or auto: draft with the target's own noise, above temperature 0",
            _switch_or_auto,
            "WHEN",
        ),
        _Option("use_cache", "on or off: reuse the prefix of earlier requests", _switch, "WHEN"),
    ],
}
_GRAMMARS = ("json_schema", "json_object", "regex", "choice", "lark")
_SAMPLING = frozenset(_SAMPLING_FIELDS)


def _all_options() -> list[_Option]:
    return [option for group in _GROUPS.values() for option in group]
