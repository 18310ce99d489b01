"""The engine gives the same tokens with executor-backed kernels as without, speculating or not."""

import pytest
from kernel_doubles import make_pair
from metalcpu import metal_kernel, options

from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.kernels.calls import Kernels
from macspec.kernels.library import KernelLibrary
from macspec.kernels.modules import install
from macspec.scheduler.interface import Decision
from tiny_engine import ask, random_prompt


class TwoDeep:
    """Drafts three, verifies two, reading confidences."""

    name = "two deep"
    needs_confidence = True

    def draft_limit(self, state):
        return min(3, state.max_depth)

    def choose(self, state):
        return Decision(min(2, state.max_depth), "two deep")

    def observe(self, outcome):
        pass


def answer(engine, prompt, temperature, depth):
    sampling = {"temperature": temperature, "seed": 5, "max_tokens": 8, "ignore_eos": True}
    return collect(engine.generate(ask(prompt, depth, **sampling)))[0].tokens


CASES = [
    ("qwen3", 0.8, None, "affine"),
    ("qwen3_5", 0.0, None, "affine"),
    ("llama", 0.0, None, "affine"),
    ("qwen3", 0.0, 8, "mxfp4"),
    ("qwen3", 0.8, 4, "affine"),
    ("qwen3_moe", 0.8, None, "affine"),
    ("qwen3_5", 0.8, None, "mxfp4"),
    ("qwen3_5_moe", 0.8, None, "affine"),
]


@pytest.mark.parametrize(("family", "temperature", "kv_bits", "mode"), CASES)
def test_same_tokens(tmp_path, family, temperature, kv_bits, mode):
    target, drafter = make_pair(family, tmp_path, mode)
    prompt, options_ = random_prompt(19, 128, seed=1), {"prefill_chunk": 32, "kv_bits": kv_bits}
    plain = answer(Engine(target, None, **options_), prompt, temperature, "0")
    library = KernelLibrary("force", Kernels(metal_kernel))
    replaced = install(target.model, library, kv_bits=kv_bits)
    engine = Engine(target, drafter, policy_factory=lambda _: TwoDeep(), **options_)
    engine.use(library)
    with options(require_outputs=False):
        assert answer(engine, prompt, temperature, "auto") == plain
    expected = {
        "verify_qmm" + ("" if mode == "affine" else "_fp"),
        "verify_attention" + ("" if kv_bits is None else "_quantised"),
        "keyed_choice",
        "draft_confidence",
    }
    expected |= {"recurrent_replay"} if "qwen3_5" in family else set()
    expected |= {"verify_moe_qmm"} if "moe" in family else set()
    assert {name.split()[0] for name, used in library._used.items() if used} == expected
    replaced.remove()
    engine.use(KernelLibrary("off", None))
    assert answer(engine, prompt, temperature, "auto") == plain
