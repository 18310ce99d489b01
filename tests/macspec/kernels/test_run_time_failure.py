"""A kernel that fails in the middle of a generation is given up, and the text stays what it would have been."""

import pytest
from kernel_doubles import FailingKernels
from mlx import nn

from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.kernels.library import KernelLibrary
from macspec.kernels.modules import install
from macspec.profiling.policies import PolicyMaker
from macspec.profiling.store import ProfileStore
from macspec.request import PrefillProgress
from macspec.scheduler.interface import Decision
from macspec_models.checkpoints import load_drafter
from tiny_drafters import write_dflash
from tiny_engine import ask, random_prompt, tiny_target

TOKENS = 20


class Sure:
    """Always two deep, reading confidences."""

    name = "sure"
    needs_confidence = True

    def draft_limit(self, state):
        return min(3, state.max_depth)

    def choose(self, state):
        assert len(state.confidence) == state.max_depth
        return Decision(min(2, state.max_depth), "sure")

    def observe(self, outcome):
        pass


@pytest.fixture(scope="module", params=["qwen3", "qwen3_5"])
def pair(request, tmp_path_factory):
    """A tiny quantised target, its drafter, a prompt and the plain answer at two temperatures."""
    sizes = {"hidden_size": 64, "head_dim": 64, "intermediate_size": 96, "num_hidden_layers": 6}
    if request.param == "qwen3_5":
        sizes |= {"full_attention_interval": 3, "linear_key_head_dim": 32}
    target = tiny_target(request.param, seed=3, **sizes)
    nn.quantize(target.model, group_size=32, bits=4, class_predicate=lambda p, m: hasattr(m, "to_quantized"))
    folder = tmp_path_factory.mktemp("drafter")
    write_dflash(folder, target.config, target_layer_ids=[1, 2, 4])
    prompt = random_prompt(19, 128, seed=1)
    plain = {t: generate(Engine(target, None, prefill_chunk=8), prompt, t, "0") for t in (0.0, 0.8)}
    return target, load_drafter(folder, target), prompt, plain


def generate(engine, prompt, temperature, depth="auto"):
    sampling = {"temperature": temperature, "seed": 5, "max_tokens": TOKENS, "ignore_eos": True}
    return collect(engine.generate(ask(prompt, depth, **sampling)))[0].tokens


CASES = [
    ("verify_qmm", 40, False),
    ("verify_qmm", 40, True),
    ("verify_attention", 9, False),
    ("keyed_choice", 3, False),
    ("keyed_choice", 3, True),
    ("draft_confidence", 2, False),
    ("recurrent_replay", 3, False),
]


@pytest.mark.parametrize(("name", "last", "lazily"), CASES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_the_same(pair, name, last, lazily, temperature):
    target, drafter, prompt, plain = pair
    kernels = FailingKernels(name, last, lazily=lazily)
    library = KernelLibrary("force", kernels)
    engine = Engine(target, drafter, prefill_chunk=8, policy_factory=lambda _: Sure())
    replaced = install(target.model, library)
    engine.use(library)
    try:
        found = generate(engine, prompt, temperature)
    finally:
        replaced.remove()
        engine.use(KernelLibrary("off", None))
    assert found == plain[temperature]
    if name == "recurrent_replay" and not engine.prefixes._new_cache().recurrent:
        assert name not in kernels.calls
        return
    assert kernels.left <= 0, f"{name} was called {kernels.calls} times"
    failed = {case.split()[0] for case, used in library._used.items() if not used}
    assert name in failed


def test_without_a_failure_every_kernel_takes_part(pair):
    target, drafter, prompt, plain = pair
    kernels = FailingKernels("none", 0)
    engine = Engine(target, drafter, prefill_chunk=8, policy_factory=lambda _: Sure())
    library = KernelLibrary("force", kernels)
    replaced = install(target.model, library)
    engine.use(library)
    try:
        assert generate(engine, prompt, 0.8) == plain[0.8]
    finally:
        replaced.remove()
        engine.use(KernelLibrary("off", None))
    wanted = {"verify_qmm", "verify_attention", "keyed_choice", "draft_confidence"}
    wanted |= {"recurrent_replay"} if engine.prefixes._new_cache().recurrent else set()
    assert set(kernels.calls) == wanted


def test_lack_of_memory_is_not_the_kernels_fault(pair):
    library = KernelLibrary("force", FailingKernels("none", 0))

    def starved():
        library.uses("some kernel")
        raise RuntimeError("[metal::malloc] Attempting to allocate 9 bytes which is greater than the maximum")

    with pytest.raises(RuntimeError, match="malloc"):
        library.guard(starved, lambda: pytest.fail("nothing to undo"))
    assert library.uses("some kernel")


def test_the_prompt_is_read_without_kernels(pair):
    target, _, prompt, _ = pair
    kernels = FailingKernels("none", 0)
    engine, library = Engine(target, None, prefill_chunk=8), KernelLibrary("force", kernels)
    replaced = install(target.model, library)
    engine.use(library)
    try:
        for event in engine.generate(ask(prompt, "0", max_tokens=1)):
            if isinstance(event, PrefillProgress):
                assert kernels.calls == {}
        assert event.stats.cached_tokens == 0 and kernels.calls
    finally:
        replaced.remove()
        engine.use(KernelLibrary("off", None))


def test_a_failure_while_costs_are_measured_ends_the_kernel_and_not_the_start(pair, tmp_path, monkeypatch):
    target, drafter, _, _ = pair
    monkeypatch.setattr(target, "max_context", 64)  # so that the caches measured on are short
    kernels = FailingKernels("verify_qmm", 200)
    library = KernelLibrary("force", kernels)
    engine = Engine(target, drafter, prefill_chunk=8)
    replaced = install(target.model, library)
    engine.use(library)
    try:
        profile = PolicyMaker(engine, store=ProfileStore(tmp_path)).prepare()
    finally:
        replaced.remove()
        engine.use(KernelLibrary("off", None))
    assert profile.ladder.max_rows == drafter.max_depth + 1
    assert kernels.left <= 0 and not all(library._used.values())
