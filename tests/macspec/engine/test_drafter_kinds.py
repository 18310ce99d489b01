"""Random weights of every kind of drafter, at work in the engine: they may be useless, never wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from macspec.api import collect
from macspec.engine.loop import Engine
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
