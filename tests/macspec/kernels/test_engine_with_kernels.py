"""The engine gives the same tokens with executor-backed kernels as without, speculating or not."""

import pytest
from metalcpu import metal_kernel, options
from mlx import nn

from fake_drafters import oracle_drafter
from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.kernels.calls import Kernels
from macspec.kernels.library import KernelLibrary
from macspec.kernels.modules import install
from tiny_engine import ask, random_prompt, tiny_target

TOKENS = 14


@pytest.fixture(scope="module")
def target():
    target = tiny_target("qwen3", seed=3, hidden_size=64, head_dim=64, intermediate_size=96)
    nn.quantize(target.model, group_size=32, bits=4)
    return target


def answer(target, prompt, temperature, drafter=None):
    sampling = {"temperature": temperature, "seed": 5, "max_tokens": TOKENS, "ignore_eos": True}
    request = ask(prompt, "0" if drafter is None else "3", **sampling)
    return collect(Engine(target, drafter, prefill_chunk=32).generate(request))[0].tokens


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_same_tokens(target, temperature):
    prompt = random_prompt(19, 128, seed=1)
    plain = answer(target, prompt, temperature)
    assert len(plain) == TOKENS
    library = KernelLibrary("force", Kernels(metal_kernel))
    replaced = install(target.model, library)
    try:
        with options(require_outputs=False):
            assert answer(target, prompt, temperature) == plain
            speculated = answer(target, prompt, temperature, oracle_drafter(plain, len(prompt), wrong_every=4))
        assert speculated == plain
        assert {name.split()[0] for name in library._active} == {"verify_qmm", "verify_attention"}
    finally:
        replaced.remove()
    assert answer(target, prompt, temperature) == plain
