import pytest

from macspec.errors import RequestError
from macspec.scheduler.cost import CostModel
from macspec.scheduler.interface import RoundState
from macspec.scheduler.ladder import Ladder
from macspec.scheduler.policies import make_policy


def test_simple_rules_keep_to_the_limit() -> None:
    state = RoundState(max_depth=3, context=10)
    assert make_policy("full").choose(state).depth == 3
    assert make_policy("fixed:9").choose(state).depth == 3
    assert make_policy("fixed:2").choose(state).depth == 2
    assert make_policy("plain").choose(state).depth == 0
    assert not make_policy("plain").draft_limit(state)
    assert not make_policy("fixed:0").draft_limit(state)
    assert not make_policy("full").draft_limit(RoundState(max_depth=0, context=10))


@pytest.mark.parametrize("name", ["fast", "fixed:", "fixed:x", "fixed:-1", "", "Rate"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        make_policy(name, CostModel(Ladder.single([1.0, 2.0])))
    assert caught.value.param == "policy"


def test_rate_needs_a_ladder() -> None:
    with pytest.raises(RequestError, match="no cost ladder"):
        make_policy("rate")
