"""Random weights of every kind of drafter beside the embedded model: its text stays that of plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.request import GenerationRequest, SamplingParams
from macspec_models.checkpoints import load_drafter
from macspec_models.drafters.combined import CombinedDrafter
from tiny_drafters import write_dflash

pytestmark = pytest.mark.slow
MESSAGES = ({"role": "user", "content": "Name three fruits, then name the same three fruits again."},)


@pytest.fixture(scope="module")
def plain(smollm: Any) -> dict[float, list[int]]:
    return {temperature: answer(smollm, None, temperature) for temperature in (0.0, 0.8)}


def answer(target: Any, drafter: Any, temperature: float) -> list[int]:
    sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=24)
    request = GenerationRequest(
        messages=MESSAGES, sampling=sampling, depth="0" if drafter is None else "full", use_cache=False
    )
    return list(collect(Engine(target, drafter).generate(request))[0].tokens)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "with lookup"])
@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark", "domino"])
def test_random_drafters_change_no_text(
    kind: str, beside: bool, smollm: Any, plain: dict[float, list[int]], tmp_path: Path
) -> None:
    write_dflash(tmp_path, smollm.config, kind=kind, target_layer_ids=[1, 14, 27])
    drafter: Any = load_drafter(tmp_path, smollm)
    if beside:
        drafter = CombinedDrafter(drafter)
    for temperature, tokens in plain.items():
        assert answer(smollm, drafter, temperature) == tokens
