from pathlib import Path

import numpy as np
import pytest

from macspec.errors import ModelLoadError, RequestError
from macspec.scheduler.dscale import DScalePolicy, LengthPredictor
from macspec.scheduler.interface import RoundState, SlotConfidence
from macspec.scheduler.policies import make_policy

SEEN = (SlotConfidence(0.9, 1.0, 1.0),) * 3


def predictor(bias: list[float]) -> LengthPredictor:
    """Ignores its inputs: the outputs are the sigmoids of ``bias``."""
    zeros = np.zeros((4, 5), np.float32)
    return LengthPredictor(zeros, np.zeros(4, np.float32), np.zeros((3, 4), np.float32), np.array(bias, np.float32))


def state(limit: int = 3) -> RoundState:
    return RoundState(limit, 0, 0.0, SEEN[:limit], features=(0.0,) * 5)


def test_survival_never_rises() -> None:
    assert predictor([0.0, 3.0, -1.0]).survival([0.0] * 5) == pytest.approx([0.5, 0.5, 0.2689414])


@pytest.mark.parametrize(
    ("bias", "slots"), [([9.0] * 3, 3), ([-9.0] * 3, 1), ([9.0, 9.0, -9.0], 2), ([9.0, 0.1, 0.0], 2)]
)
def test_length_is_the_rounded_sum_of_survival(bias: list[float], slots: int) -> None:
    assert DScalePolicy(predictor(bias)).choose(state()).depth == slots - 1


def test_stays_within_the_limit() -> None:
    policy = DScalePolicy(predictor([9.0] * 3))
    assert policy.choose(state(1)).depth <= 1
    assert policy.choose(RoundState(0, 0)).depth == 0
    assert policy.choose(RoundState(2, 0, 0.0, SEEN[:2])).depth == 2


def test_without_a_predictor_it_says_how_to_train_one(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="macspec train predictor"):
        make_policy("dscale")
    with pytest.raises(ModelLoadError, match="macspec train predictor"):
        make_policy("dscale", predictor=tmp_path / "predictor.npz")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "predictor.npz"
    made = predictor([1.0, 0.0, -1.0])
    np.savez(path, w1=made.w1, b1=made.b1, w2=made.w2, b2=made.b2, r2=np.float32(0.5))
    policy = make_policy("dscale", predictor=path)
    assert isinstance(policy, DScalePolicy) and policy.predictor.r2 == 0.5
    np.savez(path, w1=made.w1, b1=made.b2, w2=made.w2, b2=made.b2, r2=np.float32(0.5))
    with pytest.raises(ModelLoadError, match="damaged"):
        LengthPredictor.load(path)
    path.write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(ModelLoadError, match="damaged"):
        LengthPredictor.load(path)
