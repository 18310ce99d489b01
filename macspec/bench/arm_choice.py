"""Which arms a run compares, from the command line. Imports MLX only when arms are made."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from macspec.bench.analysis import PLAIN
from macspec.bench.notices import Notice, notice
from macspec.bench.remote import Endpoint, RemoteArm
from macspec.bench.samples import Arm
from macspec.cli_options import set_option
from macspec.errors import RequestError
from macspec.request import GenerationRequest
from macspec.scheduler.policies import COMPARED

if TYPE_CHECKING:
    from macspec.engine.loop import Engine

#: Fixed depths of an ordinary run and of a quick one, those the drafter can do, beside its full depth.
DEPTHS, QUICK_DEPTHS = (1, 2, 4, 8), (3,)


def add_arm_options(parser: argparse.ArgumentParser) -> None:
    """Options that name what is compared; plain decoding always takes part."""
    group = parser.add_argument_group("what is compared")
    group.add_argument("--depth", metavar="LIST", help="depths such as 0,1,3,full,auto (default: a choice of all)")
    group.add_argument("--policy", metavar="LIST", help="rules that choose the depth, with commas, or all")
    group.add_argument("--mlx-lm", action="store_true", help="also stock mlx-lm on the same weights")
    group.add_argument("--mlx-draft", metavar="FOLDER", help="also mlx-lm's own speculation with this draft model")
    group.add_argument(
        "--url", action="append", default=[], metavar="URL[=MODEL]", help="also an OpenAI-compatible server; repeatable"
    )
    group.add_argument("--api-key-env", metavar="NAME", help="environment variable with the servers' API key")


def check_arm_options(options: argparse.Namespace) -> None:
    """Refuse what can be seen to be wrong before a model is loaded; raises `RequestError`."""
    for word in _words(options.depth):
        if re.fullmatch(r"full|auto|[0-9]{1,6}", word) is None:
            raise RequestError(f"--depth has {word!r}; use numbers, full and auto with commas.", param="depth")
    for policy in _policies(options.policy):
        set_option(GenerationRequest(), "policy", policy)
    for text in options.url:
        Endpoint.parse(text)
    _api_key(options)
    if options.mlx_draft and not Path(options.mlx_draft).expanduser().is_dir():
        raise RequestError(f"There is no folder {options.mlx_draft!r}; --mlx-draft names one with a draft model.")


def choose_arms(engine: Engine, options: argparse.Namespace) -> tuple[list[Arm], list[Notice]]:
    """The arms in table order, plain first, and notices about those left out; the options were checked.

    Raises:
        RequestError: something was asked for by name that cannot be done.
    """
    from macspec.bench.arms import EngineArm, MlxLmArm, load_draft_model

    skipped: list[Notice] = []
    wanted: dict[str, tuple[str, str]] = {PLAIN: ("0", "rate")}
    for word in _words(options.depth):
        name, depth = _depth(word, engine)
        wanted[name] = (depth, "rate")
    for policy in _policies(options.policy):
        wanted[policy] = ("auto", policy)
    if options.depth is None and options.policy is None:
        wanted.update(_default_arms(engine, options.quick, skipped))
    arms: list[Arm] = [EngineArm(engine, name, depth=depth, policy=rule) for name, (depth, rule) in wanted.items()]
    if engine.exact and len(wanted) > 1:
        # The same without its price: the last is the adaptive one where there is one.
        name, (depth, rule) = list(wanted.items())[-1]
        arms.append(EngineArm(engine, f"inexact {name}", depth=depth, policy=rule, exact=False))
    for arm in arms:
        assert isinstance(arm, EngineArm)
        _check_policy(engine, arm.depth, arm.policy)
    if options.mlx_lm or options.mlx_draft:
        arms.append(MlxLmArm(engine))
    if options.mlx_draft:
        arms.append(
            MlxLmArm(engine, "mlx_lm+draft", draft_model=load_draft_model(Path(options.mlx_draft).expanduser()))
        )
    arms += _remote_arms(options, {arm.name for arm in arms})
    return arms, skipped


def _default_arms(engine: Engine, quick: bool, skipped: list[Notice]) -> dict[str, tuple[str, str]]:
    if engine.drafter is None:
        skipped.append(notice("skipped", f"Only plain decoding was measured: {engine.drafter_reason or 'no drafter'}."))
        return {}
    deepest = engine.drafter.max_depth
    chosen = [*(d for d in (QUICK_DEPTHS if quick else DEPTHS) if d < deepest), deepest]
    found = {_name(depth, deepest): (str(depth), "rate") for depth in chosen}
    try:
        _check_policy(engine, "auto", "rate")
        found["auto"] = ("auto", "rate")
    except RequestError as error:
        skipped.append(notice("skipped", f"The adaptive depth was left out. {error.message}", arm="auto"))
    return found


def _name(depth: int, deepest: int) -> str:
    return f"depth {depth} (full)" if depth == deepest else f"depth {depth}"


def _words(text: str | None) -> list[str]:
    return [] if text is None else [word.strip() for word in text.split(",")]


def _depth(word: str, engine: Engine) -> tuple[str, str]:
    """Name and depth of an arm."""
    if word == "auto":
        return "auto", "auto"
    if word != "full" and int(word) == 0:
        return PLAIN, "0"
    if engine.drafter is None:
        raise RequestError(f"Depth {word} needs a drafter, and there is none: {engine.drafter_reason}.", param="depth")
    deepest = engine.drafter.max_depth
    depth = deepest if word == "full" else int(word)
    return _name(depth, deepest), str(depth)


def _policies(text: str | None) -> list[str]:
    names = COMPARED if text == "all" else _words(text)
    return [name for name in dict.fromkeys(names) if name != PLAIN]


def _check_policy(engine: Engine, depth: str, policy: str) -> None:
    engine.policy(GenerationRequest(prompt="x", depth=depth, policy=policy))


def _api_key(options: argparse.Namespace) -> str | None:
    if options.api_key_env is None:
        return None
    key = os.environ.get(options.api_key_env)
    if not key:
        raise RequestError(f"The environment variable {options.api_key_env} is not set.", param="api-key-env")
    return key


def _remote_arms(options: argparse.Namespace, taken: set[str]) -> list[Arm]:
    key = _api_key(options)
    arms: list[Arm] = []
    for text in options.url:
        arm = RemoteArm(Endpoint.parse(text), api_key=key)
        number = 2
        plain_name = arm.name
        while arm.name in taken:
            arm.name = f"{plain_name} #{number}"
            number += 1
        taken.add(arm.name)
        arms.append(arm)
    return arms
