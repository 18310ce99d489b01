import argparse
import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import macspec_models  # noqa: F401  (loads the fast BLAS before MLX)
from macspec.scheduler.dscale import LengthPredictor
from macspec.scheduler.trace import read_trace
from macspec_models.checkpoints import load_drafter
from macspec_models.drafters.block import DFlashDrafter
from macspec_models.errors import CheckpointError
from macspec_models.training.predictor import PER_SLOT, FeatureMap, Predictor, input_count, r_squared, train
from macspec_models.training.predictor_command import add_arguments, fit, temperatures, write_trace
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


def test_directions_are_fixed() -> None:
    scores, hidden = mx.ones((2, 20)) * mx.arange(20), mx.ones((2, 4))
    first, second = (np.array(FeatureMap(2, 4, 20)(hidden, scores)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def rounds(count: int, slots: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs of which the first tells how many are accepted."""
    draw = np.random.default_rng(1)
    accepted = draw.integers(0, slots + 1, count)
    inputs = draw.standard_normal((count, 20)).astype(np.float32)
    inputs[:, 0] = 5.0 + 3.0 * accepted + 0.3 * draw.standard_normal(count)
    return inputs, accepted, np.arange(count) % 5 == 0


def test_it_learns_what_there_is_to_learn_and_the_scheduler_reads_it(tmp_path: Path) -> None:
    inputs, accepted, held_out = rounds(3000)
    predictor, report = train(inputs, accepted, held_out, 3, epochs=15)
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
    inputs, accepted, held_out = rounds(100)
    with pytest.raises(CheckpointError, match="record more"):
        train(inputs, accepted, held_out, 3)


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
    made = {item.position: item for item in record(target, drafter, answer)}
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


def test_rounds_make_a_trace(tmp_path: Path) -> None:
    confidence = np.float32([[0.5, 1.0, 2.0]] * 3)
    items = [RecordedRound(1, "code", n, n + 5, confidence, n % 4, np.zeros(0, np.float32)) for n in range(6)]
    write_trace(tmp_path / "t.jsonl", items, {"target": "tiny", "every_position": True})
    trace = read_trace(tmp_path / "t.jsonl")
    assert trace.every_position and [item.accepted for item in trace.rounds] == [0, 1, 2, 3, 0, 1]


def test_whole_answers_are_held_out(capsys: pytest.CaptureFixture[str]) -> None:
    inputs, accepted, _ = rounds(3000)
    confidence = np.zeros((3, 3), np.float32)
    made = [
        RecordedRound(number // 30, "chat", number, number, confidence, int(count), row)
        for number, (count, row) in enumerate(zip(accepted, inputs, strict=True))
    ]
    predictor, report = fit(made, 3)
    assert isinstance(predictor, Predictor) and report.held_out_rounds == 600
    assert json.loads(capsys.readouterr().out.splitlines()[0])["epoch"] == 1


def test_answers_know_their_temperature() -> None:
    assert set(np.round(list(temperatures().values()), 1)) == {0.0, 0.7}
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert parser.parse_args([]).stride == 5
