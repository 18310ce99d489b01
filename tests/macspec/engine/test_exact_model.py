"""Exact mode with the embedded pair: plain decoding's tokens, whatever a row's bits depend on."""

from __future__ import annotations

import pytest

from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.engine.row_noise import measure
from macspec.request import GenerationRequest, SamplingParams
from macspec_models.checkpoints import load_drafter
from macspec_models.embedded import drafter_folder
from macspec_models.target import Target

pytestmark = [pytest.mark.model, pytest.mark.slow]

PROMPTS = ("Is the sea salty?", "Write a line of Python that reverses a list.", "Name three birds.")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_plain_tokens(smollm_folder, dtype):
    target = Target.load(smollm_folder, dtype=dtype)
    engine = Engine(target, load_drafter(drafter_folder(), target), exact=True)
    engine._noise = measure(target, engine._new_cache, 1 + engine.drafter.max_depth, rows=24)
    for number, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(temperature=0.7 * (number % 2), seed=number, max_tokens=16, ignore_eos=True)
        request = {"messages": ({"role": "user", "content": prompt},), "sampling": sampling}
        plain, exact = (
            collect(engine.generate(GenerationRequest(**request, depth=depth)))[0] for depth in ("0", "full")
        )
        assert exact.tokens == plain.tokens
        assert exact.stats.verified > 0
