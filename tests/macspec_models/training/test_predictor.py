import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

import macspec_models  # noqa: F401  (loads the fast BLAS before MLX)
from macspec.scheduler.dscale import LengthPredictor
from macspec.scheduler.ladder import Ladder
from macspec.scheduler.simulate import simulate
from macspec.scheduler.trace import read_trace
from macspec_models.checkpoints import load_drafter
from macspec_models.drafters.block import DFlashDrafter
from macspec_models.errors import CheckpointError
from macspec_models.training.predictor import FILE, PER_SLOT, FeatureMap, Predictor, input_count, r_squared, train
from macspec_models.training.predictor_command import add_arguments, chosen, feature_map, fit, run, write_trace
from macspec_models.training.rounds import Known, RecordedRound, record
from tiny_drafters import write_dflash
from tiny_engine import tiny_target


def test_the_published_size() -> None:
    assert input_count(15) == 1735
    assert 1735 * 64 + 64 + 64 * 15 + 15 == 112_079


def test_inputs_of_a_block() -> None:
    made = FeatureMap(4, 8, 30)
    draw = np.random.default_rng(0)
    scores = mx.array(draw.standard_normal((3, 30)).astype(np.float32))
    hidden = mx.array(draw.standard_normal((3, 8)).astype(np.float32))
    values = np.array(made(hidden, scores))
    assert values.shape == (input_count(4),)
    ranks = values[: 4 * PER_SLOT].reshape(4, PER_SLOT)
    ordered = np.sort(np.array(scores), axis=-1)[:, ::-1]
    np.testing.assert_allclose(ranks[:3, 0], ordered[:, 0], rtol=1e-5)
    np.testing.assert_allclose(ranks[:3, 1:16], ordered[:, :1] - ordered[:, 1:16], rtol=1e-4, atol=1e-5)
    chances = np.exp(np.array(scores)) / np.exp(np.array(scores)).sum(-1, keepdims=True)
    np.testing.assert_allclose(ranks[:3, 16], np.log(chances.max(-1)), rtol=1e-4)
    np.testing.assert_allclose(ranks[:3, 17], -(chances * np.log(chances)).sum(-1), rtol=1e-4)
    assert not ranks[3].any()
    assert values[-25] == 1.0 and not values[-24:].any()
    together = np.array(made(mx.stack([hidden, 2 * hidden]), mx.stack([scores, -scores])))
    np.testing.assert_allclose(together[0], values, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(together[1], np.array(made(2 * hidden, -scores)), rtol=1e-5, atol=1e-6)


def test_inputs_of_a_reduced_head_are_those_of_the_tokens_it_scores() -> None:
    """Another choice of rows gives the same directions to the same tokens, in whatever columns they are."""
    draw = np.random.default_rng(0)
    scores, hidden = draw.standard_normal((2, 30)).astype(np.float32), mx.zeros((2, 4))
    rows = draw.permutation(30)
    whole = np.array(FeatureMap(2, 4, 30)(hidden, mx.array(scores)))
    shuffled = np.array(FeatureMap(2, 4, 30, rows)(hidden, mx.array(scores[:, rows])))
    np.testing.assert_allclose(shuffled, whole, rtol=1e-4, atol=1e-5)


def test_directions_are_fixed() -> None:
    scores, hidden = mx.ones((2, 20)) * mx.arange(20), mx.ones((2, 4))
    first, second = (np.array(FeatureMap(2, 4, 20)(hidden, scores)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def rounds(count: int, slots: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Inputs of which the first tells how many are accepted, of texts of ten rounds; every fifth text is held out."""
    draw = np.random.default_rng(1)
    accepted = draw.integers(0, slots + 1, count)
    inputs = draw.standard_normal((count, 20)).astype(np.float32)
    inputs[:, 0] = 5.0 + 3.0 * accepted + 0.3 * draw.standard_normal(count)
    texts = np.arange(count) // 10
    return inputs, accepted, texts, texts % 5 == 0


def test_it_learns_what_there_is_to_learn_and_the_scheduler_reads_it(tmp_path: Path) -> None:
    inputs, accepted, texts, held_out = rounds(3000)
    predictor, report = train(inputs, accepted, texts, held_out, 3, epochs=15)
    assert report.r2 > 0.9 and report.held_out_rounds == 600
    survival = predictor(inputs[:50])
    assert (np.diff(survival, axis=-1) <= 1e-6).all()
    path = tmp_path / "predictor.npz"
    predictor.save(path)
    read = LengthPredictor.load(path)
    assert read.r2 == pytest.approx(report.r2, abs=1e-6)
    for row, expected in zip(inputs[:20], survival[:20], strict=True):
        assert read.survival(row) == pytest.approx(expected.tolist(), abs=1e-5)


def test_too_few_rounds_are_refused() -> None:
    inputs, accepted, texts, held_out = rounds(100)
    with pytest.raises(CheckpointError, match="record more"):
        train(inputs, accepted, texts, held_out, 3)


def test_the_held_out_figure_is_of_rounds_nothing_was_chosen_by() -> None:
    """Held-out rounds that contradict the others change the figure and not one weight."""
    inputs, accepted, texts, held_out = rounds(2500)
    honest, _ = train(inputs, accepted, texts, held_out, 3, epochs=4)
    turned = np.where(held_out, 3 - accepted, accepted)
    other, report = train(inputs, turned, texts, held_out, 3, epochs=4)
    np.testing.assert_array_equal(honest.w1, other.w1)
    assert honest.r2 > 0.5 > 0.0 > report.r2


def test_r_squared() -> None:
    truth = np.float32([0, 1, 2, 3])
    assert r_squared(truth, truth) == 1.0
    assert r_squared(np.full(4, 1.5, np.float32), truth) == pytest.approx(0.0)
    assert r_squared(truth, np.ones(4, np.float32)) == 0.0


def test_recorded_rounds_are_what_decoding_would_do(tmp_path: Path) -> None:
    """Every recorded draft equals a fresh drafter's at that position, and acceptance is its agreement with the text."""
    target = tiny_target(num_hidden_layers=8)
    write_dflash(tmp_path, target.config)
    drafter = load_drafter(tmp_path, target)
    assert type(drafter) is DFlashDrafter
    tokens = np.random.default_rng(3).integers(0, target.vocab_size, 30).tolist()
    answer = Known(7, "chat", tokens, prompt_length=10, temperature=0.7)
    drafter.feature_map = inputs = feature_map(drafter, target)
    made = {item.position: item for item in record(target, drafter, answer, features=inputs)}
    depth = drafter.max_depth
    assert sorted(made) == list(range(21 - depth))
    for position, item in made.items():
        anchor = 10 + position - 1
        assert (item.text, item.context, item.temperature) == (7, anchor, 0.7)
        target.set_taps(drafter.taps)
        target.forward(mx.array([tokens[:anchor]]), target.make_cache())
        context = drafter.new_context()
        taps = target.features()
        assert taps is not None
        drafter.extend(context, taps)
        block = drafter.draft(context, tokens[anchor], tokens[: anchor + 1])
        agree = np.array(block.tokens) == np.array(tokens[anchor + 1 : anchor + 1 + depth])
        assert item.accepted == (depth if agree.all() else int(agree.argmin()))
        np.testing.assert_allclose(item.confidence, np.array(block.confidence), rtol=1e-3, atol=1e-4)
        assert block.features is not None
        np.testing.assert_allclose(item.features, np.array(block.features), rtol=1e-3, atol=1e-4)


def test_rounds_make_a_trace(tmp_path: Path) -> None:
    confidence = np.float32([[0.5, 1.0, 2.0]] * 3)
    items = [RecordedRound(1, "code", n, n + 5, confidence, n % 4, np.zeros(0, np.float32)) for n in range(6)]
    write_trace(tmp_path / "t.jsonl", items, {"target": "tiny", "every_position": True})
    trace = read_trace(tmp_path / "t.jsonl")
    assert trace.every_position and [item.accepted for item in trace.rounds] == [0, 1, 2, 3, 0, 1]


def test_it_is_fitted_to_the_rounds_of_answers_that_are_not_held_out(capsys: pytest.CaptureFixture[str]) -> None:
    inputs, accepted, texts, held_out = rounds(3000)
    made = [
        RecordedRound(int(text), "chat", 0, 0, np.zeros((3, 3), np.float32), int(count), row, held_out=bool(held))
        for text, count, row, held in zip(texts, accepted, inputs, held_out, strict=True)
    ]
    predictor, report = fit(made, 3)
    assert isinstance(predictor, Predictor) and (report.train_rounds, report.held_out_rounds) == (2400, 600)
    assert json.loads(capsys.readouterr().out.splitlines()[0])["epoch"] == 1


def test_any_beginning_of_the_answers_has_its_share_of_held_out_ones() -> None:
    answers = [Known(number, "chat", [], 0, held_out=number % 40 == 0) for number in range(2000)]
    some = chosen(answers, 100)
    assert len({answer.text for answer in some}) == 100 and sum(answer.held_out for answer in some) == 20
    assert [sum(answer.held_out for answer in some[: 10 * n]) for n in range(1, 11)] == [2 * n for n in range(1, 11)]
    assert [answer.held_out for answer in chosen(answers, 2)].count(True) == 1


def test_the_command_trains_on_a_models_own_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers of another model are never the shipped ones; what it stores is what the scheduler reads."""
    target = tiny_target(num_hidden_layers=8)
    folder = tmp_path / "drafter"
    folder.mkdir()
    write_dflash(folder, target.config)
    options = parsed("--drafter", str(folder), "--stride", "1", "--trace", str(tmp_path / "t.jsonl"))
    with pytest.raises(CheckpointError, match="macspec train responses --model tiny"):
        run(target, options, tmp_path)
    draw = np.random.default_rng(0)
    target.tokenizer = SimpleNamespace(apply_chat_template=lambda messages, **options: [1, 2, 3])
    answers = [draw.integers(0, target.vocab_size, 40) for _ in range(60)]
    np.savez(
        tmp_path / "responses.npz",
        prompt=np.arange(60),
        temperature=np.where(np.arange(60) % 2, 0.7, 0.0),
        offset=40 * np.arange(61),
        tokens=np.concatenate(answers),
    )
    assert run(target, options, tmp_path) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    read = LengthPredictor.load(folder / FILE)
    depth = load_drafter(folder, target).max_depth
    assert read.r2 == pytest.approx(said["r2"], abs=1e-6) and said["held_out_rounds"] == 2 * (41 - depth)
    assert (read.slots, read.inputs) == (depth, input_count(depth))
    trace = read_trace(tmp_path / "t.jsonl")
    assert trace.every_position and len(trace.rounds) == said["held_out_rounds"]
    assert {len(item.features) for item in trace.rounds} == {input_count(depth)}
    ladder = Ladder.single([10.0 + row for row in range(depth + 1)], 1.0)
    assert simulate("dscale", trace, ladder, predictor=folder / FILE).tokens >= len(trace.rounds) / (depth + 1)


def test_only_dflash_drafters_are_trained_for(tmp_path: Path) -> None:
    target = tiny_target(num_hidden_layers=8)
    (tmp_path / "responses.npz").touch()
    (tmp_path / "drafter").mkdir()
    write_dflash(tmp_path / "drafter", target.config, kind="dspark")
    with pytest.raises(CheckpointError, match="dspark"):
        run(target, parsed("--drafter", str(tmp_path / "drafter")), tmp_path)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args(words)
    options.model, options.seconds, options.out = "tiny", 60.0, None
    return options
