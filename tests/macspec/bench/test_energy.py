from __future__ import annotations

import os

import pytest

from macspec.bench.energy import STALE_S, Energy, PowerCommand
from macspec.errors import RequestError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_reading_holds_until_the_next() -> None:
    clock = Clock()
    energy = Energy(clock)
    assert energy.joules() is None
    assert energy.add("10\n")
    clock.now += 2
    assert energy.joules() == pytest.approx(20.0)
    assert energy.add(" 30.5 ")
    clock.now += 4
    assert energy.joules() == pytest.approx(20.0 + 122.0)


def test_a_source_that_fell_silent_says_nothing_more() -> None:
    clock = Clock()
    energy = Energy(clock)
    energy.add("10")
    clock.now += STALE_S + 1
    assert energy.joules() is None


@pytest.mark.parametrize("line", ["", "watts", "nan", "inf", "-3", "1e9", "12 W"])
def test_what_is_no_number_of_watts(line: str) -> None:
    energy = Energy(Clock())
    assert not energy.add(line)
    assert energy.joules() is None


def test_a_command_runs_as_long_as_it_is_needed() -> None:
    with PowerCommand("echo header; echo 12.5; exec sleep 300") as power:
        assert power.energy.joules() is not None
        process = power._process
        assert process.poll() is None
    assert process.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("true", "it printed nothing"),
        ("no-such-command-anywhere", "it printed nothing"),
        ("echo hot; exec sleep 300", "it printed 'hot'"),
        ("trap '' TERM; while :; do sleep 0.05; done", "it printed nothing"),
    ],
)
def test_a_command_without_watts_is_refused(command: str, said: str) -> None:
    with pytest.raises(RequestError, match=said), PowerCommand(command, first_reading_s=0.3):
        raise AssertionError("nothing may be measured")
