from hypothesis import given
from hypothesis import strategies as st

from macspec.scheduler.parking import LONGEST_GAP, NEAR_GAP, PATIENCE, PROBE_BUDGET, Mode, Parking


def drive(parking: Parking, rounds: int, advantage: float, *, draft: float = 1.0, plain: float = 10.0) -> list[bool]:
    """Which of the rounds drafted, when a drafted one is worth ``advantage`` tokens."""
    drafted = []
    for _ in range(rounds):
        if parking.next(draft) is Mode.PARKED:
            parking.plain_round(plain)
            drafted.append(False)
        else:
            parking.drafted_round(advantage, advantage, draft, plain + draft)
            drafted.append(True)
    return drafted


def test_losing_drafts_park_after_some_patience() -> None:
    drafted = drive(Parking(), 30, -0.3)
    assert drafted[:PATIENCE] == [True] * PATIENCE
    assert not any(drafted[PATIENCE : PATIENCE + 3])


def test_winning_drafts_never_park() -> None:
    assert all(drive(Parking(), 500, 0.2))


def test_probes_back_off_first_to_the_near_gap_then_further() -> None:
    drafted = drive(Parking(), 4000, -0.3)
    probes = [number for number, used in enumerate(drafted) if used][PATIENCE:]
    gaps = [b - a - 1 for a, b in zip(probes, probes[1:], strict=False)]
    assert gaps[0] < NEAR_GAP
    assert gaps.count(NEAR_GAP) >= 5
    assert max(gaps) == LONGEST_GAP
    assert gaps == sorted(gaps)


def test_unparks_when_a_probe_pays() -> None:
    parking = Parking()
    drive(parking, 60, -0.3)
    assert all(drive(parking, 40, 1.0)[NEAR_GAP + 1 :])


def test_a_new_request_looks_soon() -> None:
    parking = Parking()
    drive(parking, 3000, -0.3)
    parking.new_request()
    assert any(drive(parking, 5, -0.3))


def test_results_park_what_expectation_would_not() -> None:
    parking = Parking()
    for _ in range(60):
        if parking.next(1.0) is Mode.PARKED:
            return
        parking.drafted_round(1.0, -0.6, 1.0, 11.0)
    raise AssertionError("still drafting at a loss")


@given(
    st.lists(st.floats(-2.0, 3.0), min_size=1, max_size=600),
    st.floats(0.1, 30.0),
    st.integers(0, 40),
)
def test_probes_keep_to_their_budget(advantages: list[float], draft: float, between: int) -> None:
    parking = Parking()
    for number, advantage in enumerate(advantages):
        if between and number % between == 0:
            parking.new_request()
        if parking.next(draft) is Mode.PARKED:
            parking.plain_round(10.0)
        else:
            parking.drafted_round(advantage, advantage, draft, 10.0 + draft)
    # One probe's own cost may come on top: it is known only when it was made.
    assert parking.probe_share <= PROBE_BUDGET + 1e-9 or parking._probe_ms <= PROBE_BUDGET * parking._total_ms + draft
