"""Rounds whose depth is decided on the device give the same tokens, and are used only when they win their race."""

import mlx.core as mx
import numpy as np
import pytest
from kernel_doubles import FailingKernels, make_pair
from metalcpu import metal_kernel, options

from macspec.api import collect
from macspec.engine import rounds as rounds_module
from macspec.engine.device_round import CASE, depth_on_device, race_case
from macspec.engine.loop import Engine
from macspec.engine.prefix_cache import Reuse
from macspec.engine.session import Session
from macspec.kernels.calls import Kernels
from macspec.kernels.library import KernelLibrary
from macspec.kernels.modules import install
from macspec.kernels.probe import MlxDevice, probe
from macspec.kernels.verdicts import Outcome
from macspec.request import Round
from macspec.scheduler.cost import CostModel
from macspec.scheduler.ladder import Ladder
from macspec.scheduler.plan import DepthPlan
from macspec.scheduler.policies import make_policy
from macspec.scheduler.survival import SurvivalModel
from macspec_models.drafters.lookup import LookupDrafter
from tiny_engine import ask, random_prompt, tiny_engine

LADDER = Ladder(contexts=(16,), verify=(tuple(3.0 + 2.0 * r for r in range(1, 17)),), draft=(1.0,), replay=(), name="t")


@pytest.mark.parametrize("replay", [(), (0.2, 0.25, 0.3)])
def test_the_device_decides_as_the_host_does(replay):
    random, seen = np.random.default_rng(2), set()
    survival = SurvivalModel()
    survival.bias = 0.3
    for _ in range(200):
        slots = int(random.integers(1, 16))
        price = np.cumsum(random.uniform(0.05, 0.6, slots + 1)).tolist()
        plan = survival.plan(slots, float(random.choice([0.0, 0.5, 1.0])), price, replay)
        p = (1 / (1 + np.exp(-random.normal(1.5, 2.0, slots)))).astype(np.float32)
        p[random.integers(0, slots)] = random.choice([0.0, 1.0, 0.5, 0.97])
        found = depth_on_device(plan, mx.array(p), slots)
        assert found.dtype == mx.int32 and found.tolist() == [plan.depth(p.tolist())]
        seen.add(found.item())
    assert len(seen) > 5
    assert depth_on_device(DepthPlan.fixed(3), mx.zeros((5,)), 5).tolist() == [3]
    assert depth_on_device(DepthPlan.fixed(9), mx.zeros((5,)), 5).tolist() == [5]
    assert depth_on_device(survival.plan(0, 0.0, [1.0]), mx.zeros((0,)), 0).tolist() == [0]


def policies(name):
    return make_policy(name, CostModel(LADDER)) if name == "rate" else make_policy(name)


def answer(engine, prompt, temperature, depth, tokens=8):
    sampling = {"temperature": temperature, "seed": 5, "max_tokens": tokens, "ignore_eos": True}
    events = list(engine.generate(ask(prompt, depth, **sampling)))
    return collect(events)[0].tokens, [event for event in events if isinstance(event, Round)]


def with_kernels(target, drafter, kernels, **engine_options):
    library = KernelLibrary("force", kernels)
    replaced = install(target.model, library)
    engine = Engine(target, drafter, policy_factory=policies, **engine_options)
    engine.use(library)
    engine.device_case = CASE
    return engine, library, replaced


CASES = [("qwen3", "auto", 0.0), ("qwen3_5", "2", 0.8)]
CASES += [
    (family, depth, temperature)
    for family in ("llama", "qwen3_moe", "qwen3_5")
    for depth in ("auto", "full")
    for temperature in (0.0, 0.8)
]


@pytest.mark.parametrize(("family", "depth", "temperature"), CASES)
def test_same_tokens_with_executed_kernels(tmp_path, family, depth, temperature):
    target, drafter = make_pair(family, tmp_path, "affine")
    prompt = random_prompt(19, 128, seed=1)
    plain, _ = answer(Engine(target, None), prompt, temperature, "0")
    engine, library, replaced = with_kernels(target, drafter, Kernels(metal_kernel))
    with options(require_outputs=False):
        found, played = answer(engine, prompt, temperature, depth)
    replaced.remove()
    engine.use(KernelLibrary("off", None))
    assert found == plain
    used = {name.split()[0] for name, yes in library._used.items() if yes}
    assert {CASE, "accept_prefix", "keyed_choice", "draft_confidence", "verify_qmm"} <= used
    assert any(event.drafted > event.verified for event in played) or depth != "auto"


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "qwen3_moe"])
@pytest.mark.parametrize("depth", ["auto", "3", "full"])
def test_same_tokens_and_one_wait_a_round(tmp_path, monkeypatch, family, depth):
    target, drafter = make_pair(family, tmp_path, "affine")
    prompt = random_prompt(19, 128, seed=2)
    plain, _ = answer(Engine(target, None), prompt, 0.8, "0", tokens=40)
    engine, library, replaced = with_kernels(target, drafter, FailingKernels("none", 0))
    real_round, real_read = rounds_module.run_round, rounds_module.Rounds._read_draft
    waits: list[int] = []
    reads: list[bool] = []
    monkeypatch.setattr(rounds_module, "run_round", lambda *a: waits.append(1) or real_round(*a))
    monkeypatch.setattr(
        rounds_module.Rounds, "_read_draft", lambda self: reads.append(self._block is not None) or real_read(self)
    )
    found, played = answer(engine, prompt, 0.8, depth, tokens=40)
    replaced.remove()
    engine.use(KernelLibrary("off", None))
    assert found == plain
    assert waits and not any(reads) and len(waits) + len(reads) == len(played)
    if depth == "3":
        assert {event.verified for event in played[:-3]} == {3}


def test_a_failure_in_the_round_gives_the_same_text_and_ends_these_rounds(tmp_path):
    target, drafter = make_pair("qwen3_5", tmp_path, "affine")
    prompt = random_prompt(19, 128, seed=2)
    plain, _ = answer(Engine(target, None), prompt, 0.0, "0", tokens=30)
    for name, last in (("accept_prefix", 2), ("verify_qmm", 30), ("keyed_choice", 3)):
        kernels = FailingKernels(name, last)
        engine, library, replaced = with_kernels(target, drafter, kernels)
        found, _ = answer(engine, prompt, 0.0, "auto", tokens=30)
        replaced.remove()
        engine.use(KernelLibrary("off", None))
        assert found == plain and kernels.left <= 0 and not library.uses(CASE)


@pytest.mark.parametrize("times", [(1.0, 2.0), (2.0, 1.0)])
def test_the_race_compares_whole_rounds_and_decides(tmp_path, times):
    class Timed(MlxDevice):
        def race(self, case, budget_s):
            super().race(case, 0.01)
            return times

    target, drafter = make_pair("qwen3_5", tmp_path, "affine")
    engine = Engine(target, drafter, policy_factory=policies)
    library = KernelLibrary("probe", FailingKernels("none", 0), device=Timed(), box_s=60.0)
    engine.use(library)
    engine.race_device_rounds()
    (row,) = library.table()
    assert row["case"] == engine.device_case and row["case"].startswith(CASE)
    assert row["outcome"] == (Outcome.WINS if times[0] < times[1] else Outcome.SLOWER), row["reason"]
    assert library.uses(engine.device_case) == (times[0] < times[1])
    prompt = random_prompt(19, 128, seed=2)
    found, _ = answer(engine, prompt, 0.0, "auto", tokens=20)
    engine.use(KernelLibrary("off", None))
    assert found == answer(Engine(target, None), prompt, 0.0, "0", tokens=20)[0]


def test_a_round_that_chooses_other_tokens_loses(tmp_path):
    target, drafter = make_pair("qwen3", tmp_path, "affine")
    engine = Engine(target, drafter)

    class OffByOne(FailingKernels):
        def accept_prefix(self, *arguments):
            tokens, summary = super().accept_prefix(*arguments)
            return tokens + 1, summary

    library = KernelLibrary("force", OffByOne("none", 0))
    engine.use(library)
    prompt = list(random_prompt(9, 128))
    session = Session(target, drafter, prompt, Reuse(engine._new_cache(), drafter.new_context(), 0), library)
    assert list(session.prefill(16, lambda: False)) == [8]
    verdict = probe(race_case(session, engine.ops, "pair", "mlx"), MlxDevice(), 60.0)
    engine.use(KernelLibrary("off", None))
    assert verdict.outcome is Outcome.WRONG


def test_without_a_drafter_that_computes_there_is_nothing_to_race():
    engine = tiny_engine("qwen3", LookupDrafter())
    engine.use(KernelLibrary("force", FailingKernels("none", 0)))
    engine.race_device_rounds()
    assert engine.device_case == ""
