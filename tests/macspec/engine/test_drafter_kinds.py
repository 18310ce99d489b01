"""Random weights of every kind of drafter, at work in the engine: they may be useless, never wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.errors import RequestError
from macspec.request import Round
from macspec.scheduler.interface import RoundState
from macspec.scheduler.simple import FixedPolicy
from macspec_models.checkpoints import load_drafter
from macspec_models.drafters.combined import CombinedDrafter
from macspec_models.drafters.lookup import LookupDrafter
from tiny_drafters import write_dflash
from tiny_engine import ask, random_prompt, tiny_target

VOCAB = 128
KINDS = ("dflash", "dflash2", "dspark", "domino", "sliding", "reduced", "lookup", "combined")


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_target("qwen3", seed=4, num_hidden_layers=6)


def make(kind: str, target: Any, folder: Path) -> Any:
    """A drafter of a kind; ``sliding`` and ``reduced`` are DFlash with a tiny window and with a part of the head."""
    if kind == "lookup":
        return LookupDrafter()
    variants: dict[str, Any] = {"kind": kind} if kind in ("dflash2", "dspark", "domino") else {}
    if kind == "sliding":
        variants = {"layer_types": ["sliding_attention"] * 3, "sliding_window": 7}
    write_dflash(folder, target.config, target_layer_ids=[1, 2, 4], **variants)
    drafter = load_drafter(folder, target, head_rows=np.arange(0, VOCAB, 2) if kind == "reduced" else None)
    return CombinedDrafter(drafter) if kind == "combined" else drafter


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_plain_tokens(kind: str, temperature: float, target: Any, tmp_path: Path) -> None:
    prompt = random_prompt(11, VOCAB, seed=1)
    sampling = {"temperature": temperature, "seed": 5, "max_tokens": 24, "ignore_eos": True}
    plain = collect(Engine(target, None, prefill_chunk=5).generate(ask(prompt, "0", **sampling)))[0]
    engine = Engine(target, make(kind, target, tmp_path), prefill_chunk=5)
    for depth in ("2", "full"):
        assert collect(engine.generate(ask(prompt, depth, **sampling)))[0].tokens == plain.tokens


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark", "domino", "sliding", "combined"])
def test_a_bounded_context_changes_no_token_and_stops_growing(kind: str, target: Any, tmp_path: Path) -> None:
    prompt = random_prompt(900, VOCAB, seed=1)
    request = ask(prompt, "full", max_tokens=24, ignore_eos=True)
    plain = collect(Engine(target, None).generate(ask(prompt, "0", max_tokens=24, ignore_eos=True)))[0]
    drafter = make(kind, target, tmp_path)
    engine = Engine(target, drafter, prefill_chunk=64, drafter_context=5)
    assert collect(engine.generate(request))[0].tokens == plain.tokens
    context = engine.prefixes.take([*prompt, *plain.tokens]).context
    buffers = getattr(context, "model", context).layers
    assert all(buffer.visible() == 5 and buffer.keys.shape[2] < 600 for buffer in buffers)
    near, far = engine.guard.forecast(1000), engine.guard.forecast(2000)
    unbounded = Engine(target, make(kind, target, tmp_path)).guard
    growth = unbounded.forecast(2000).total - unbounded.forecast(1000).total
    assert far.total - near.total < growth


def test_a_bound_that_cannot_be_kept_is_refused(target: Any, tmp_path: Path) -> None:
    for drafter in (None, LookupDrafter()):
        with pytest.raises(RequestError, match="needs a drafter that is a model") as error:
            Engine(target, drafter, drafter_context=64)
        assert error.value.param == "drafter_context"
    with pytest.raises(RequestError, match="drafter_context is 0; use a number of tokens from 1 up"):
        Engine(target, make("dflash", target, tmp_path), drafter_context=0)


class Thrifty(FixedPolicy):
    """Pays for no draft, takes what is free."""

    def draft_limit(self, state: RoundState) -> int:
        return state.max_depth if state.free else 0


@pytest.mark.parametrize("kind", ["combined", "dflash"])
def test_lookup_goes_on_where_no_draft_is_paid_for(kind: str, target: Any, tmp_path: Path) -> None:
    prompt = random_prompt(11, VOCAB, seed=1)
    request = ask(prompt, "auto", max_tokens=120, ignore_eos=True)
    plain = collect(Engine(target, None, prefill_chunk=5).generate(request))[0]
    drafter = make(kind, target, tmp_path)
    engine = Engine(target, drafter, prefill_chunk=5, policy_factory=lambda name: Thrifty(7))
    rounds = [event for event in engine.generate(request) if isinstance(event, Round)]
    answer = collect(engine.generate(request))[0]
    assert answer.tokens == plain.tokens
    accepted = sum(event.accepted for event in rounds)
    # This target runs in circles; a drafter without lookup has nothing for free.
    assert accepted > 40 if kind == "combined" else accepted == sum(event.drafted for event in rounds) == 0


def test_lookup_repeats_what_the_target_repeats(target: Any) -> None:
    """A random target soon runs in circles at temperature 0; lookup must ride along."""
    prompt = random_prompt(11, VOCAB, seed=1)
    engine = Engine(target, LookupDrafter(), prefill_chunk=5)
    answer = collect(engine.generate(ask(prompt, "full", max_tokens=120, ignore_eos=True)))[0]
    tokens = list(answer.tokens)
    circles = any(tokens[-size:] == tokens[-2 * size : -size] for size in range(1, 60))
    assert circles, "this target does not repeat itself; choose another seed"
    assert answer.stats.acceptance_length > 2
