from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from fake_drafters import random_drafter
from macspec.bench import arm_choice
from macspec.bench.arms import Canary, EngineArm, MlxLmArm
from macspec.bench.quality import first_difference
from macspec.bench.samples import Prompt, Settings
from macspec.bench.tracing import record
from macspec.engine.loop import Engine
from macspec.errors import RequestError
from macspec.scheduler.trace import read_trace
from macspec_models.target import Target
from tiny_engine import write_target

PROMPT = Prompt("chat-1", "chat", "Hello there, how are you?")
SETTINGS = Settings(max_tokens=24)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(write_target(tmp_path_factory.mktemp("tiny")), dtype="float32")


@pytest.fixture
def engine(target: Target) -> Engine:
    return Engine(target, random_drafter(target.vocab_size))


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    arm_choice.add_arm_options(parser)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args(words)


def names(engine: Engine, *words: str) -> list[str]:
    return [arm.name for arm in arm_choice.choose_arms(engine, options(*words))[0]]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_every_depth_gives_the_same_tokens_and_consistent_counts(engine: Engine, temperature: float) -> None:
    settings = Settings(max_tokens=24, temperature=temperature, seed=5)
    plain = EngineArm(engine, "plain", depth="0").run(PROMPT, settings)
    full = EngineArm(engine, "full", depth="full").run(PROMPT, settings)
    assert first_difference(plain, full) is None
    for sample in (plain, full):
        assert sample.generation_tokens == len(sample.tokens) == sum(r.committed for r in sample.rounds)
        assert sample.first_round_tokens == sample.rounds[0].committed
        assert 0 < sample.first_commit_s <= sample.end_s
        assert sample.prompt_tokens > 10 and sample.peak_memory > 0
    assert all(r.verified == 0 for r in plain.rounds) and any(r.verified > 0 for r in full.rounds)


def test_stock_mlx_lm_chooses_the_same_tokens_and_leaves_the_taps_alone(engine: Engine) -> None:
    plain = EngineArm(engine, "plain", depth="0").run(PROMPT, SETTINGS)
    stock = MlxLmArm(engine)
    assert first_difference(plain, stock.run(PROMPT, SETTINGS)) is None
    own_draft = MlxLmArm(engine, "mlx_lm+draft", draft_model=engine.target.model)
    assert first_difference(plain, own_draft.run(PROMPT, SETTINGS)) is None
    again = EngineArm(engine, "full", depth="full").run(PROMPT, SETTINGS)
    assert first_difference(plain, again) is None


def test_gap_is_that_of_the_logits(engine: Engine) -> None:
    arm = EngineArm(engine, "plain", depth="0")
    sample = arm.run(PROMPT, SETTINGS)
    chosen, other = sample.tokens[6], (sample.tokens[6] + 1) % engine.target.vocab_size
    gap = arm.gap(PROMPT, sample.tokens[:6], chosen, other)
    assert gap is not None and gap > 0
    assert arm.gap(PROMPT, sample.tokens[:6], other, chosen) == pytest.approx(-gap)
    assert MlxLmArm(engine).gap(PROMPT, sample.tokens[:6], chosen, other) == pytest.approx(gap)


def test_arms_of_the_command_line(engine: Engine) -> None:
    deepest = engine.drafter.max_depth if engine.drafter is not None else 0
    full = f"depth {deepest} (full)"
    assert names(engine, "--depth", "0,1,full") == ["plain", "depth 1", full]
    assert names(engine, "--depth", "2", "--mlx-lm") == ["plain", "depth 2", "mlx_lm"]
    assert names(engine, "--policy", "adaedl,full") == ["plain", "adaedl", "full"]
    # An engine without a cost ladder has no auto.
    assert names(engine, "--quick") == ["plain", "depth 3", full]
    urls = names(engine, "--depth", "0", "--url", "http://h:1", "--url", "http://h:1=m")
    assert urls == ["plain", "h:1", "h:1 #2"]


def test_exact_mode_is_compared_with_its_price_and_without(target: Target) -> None:
    exact = Engine(target, random_drafter(target.vocab_size), exact=True)
    arms, _ = arm_choice.choose_arms(exact, options("--depth", "0,2,full"))
    assert [arm.name for arm in arms] == ["plain", "depth 2", "depth 7 (full)", "inexact depth 7 (full)"]
    found = [arm.request(PROMPT, SETTINGS).exact for arm in arms if isinstance(arm, EngineArm)]
    assert found == [None, None, None, False]
    sample = arms[2].run(PROMPT, SETTINGS)
    assert sample.tokens == arms[0].run(PROMPT, SETTINGS).tokens


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--depth", "99"], "depth is 99, but this drafter drafts"),
        (["--depth", "deep"], "use numbers, full and auto"),
        (["--depth", "-1"], "use numbers, full and auto"),
        (["--policy", "magic"], "no policy 'magic'"),
        (["--url", "nonsense"], "write http://host:port"),
        (["--api-key-env", "MACSPEC_NO_SUCH_KEY"], "is not set"),
    ],
)
def test_arms_that_cannot_be(engine: Engine, words: list[str], sentence: str) -> None:
    asked = options(f"{words[0]}={words[1]}")
    with pytest.raises(RequestError, match=sentence):
        arm_choice.check_arm_options(asked)
        arm_choice.choose_arms(engine, asked)


def test_without_a_drafter_only_plain_is_left_and_said_so(target: Target) -> None:
    bare = Engine(target, None, drafter_reason="no drafter was asked for")
    arms, skipped = arm_choice.choose_arms(bare, options("--quick"))
    assert [arm.name for arm in arms] == ["plain"]
    assert "no drafter was asked for" in skipped[0].message
    with pytest.raises(RequestError, match="needs a drafter"):
        arm_choice.choose_arms(bare, options("--depth", "2"))


def test_trace_has_every_drafted_round(engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    assert record(engine, [PROMPT, Prompt("code-1", "code", "More.")], SETTINGS, file, {"target": "tiny"}) == 2
    trace = read_trace(file)
    assert {r.tag for r in trace.rounds} == {"chat", "code"} and {r.text for r in trace.rounds} == {0, 1}
    assert all(len(r.confidence) == r.depth for r in trace.rounds)
    assert trace.rounds[0].position == 0 and trace.rounds[1].position == trace.rounds[0].accepted + 1
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


def test_trace_needs_a_drafter(target: Target, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="A trace needs a drafter"):
        record(Engine(target, None), [PROMPT], SETTINGS, tmp_path / "t.jsonl", {})
    assert not list(tmp_path.iterdir())


def test_canary_takes_time() -> None:
    assert 0 < Canary()() < 10_000
