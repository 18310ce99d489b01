"""Prefix reuse gives caches that equal a fresh prefill, within the budget, whatever was kept before."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toy_chat import Chat, CountingContext, numbers
from toy_model import KINDS

# isort: split
import mlx.core as mx

from macspec.engine.prefix_cache import MAX_MARKS, PrefixCache

POSITIONAL = ("full", "quantized", "concatenated")
MIXED = tuple(KINDS)


@pytest.mark.parametrize("kinds", [POSITIONAL, MIXED])
def test_each_turn_reads_only_its_own_new_tokens(kinds) -> None:
    chat = Chat(kinds)
    history: list[int] = []
    for turn in range(30 if kinds is POSITIONAL else 10):
        prompt = [*history, *numbers(12, turn)]
        reuse = chat.ask(prompt, numbers(9, 1000 + turn))
        assert reuse.cached == max(len(history) - 1, 0)
        assert chat.prefill_read == len(prompt) - 1 - reuse.cached
        assert reuse.context is not None and -1 not in reuse.context.seen
        history = [*prompt, *numbers(9, 1000 + turn)]
    assert len(chat.prefixes) == 1


@pytest.mark.parametrize("kinds", [POSITIONAL, MIXED])
def test_a_template_that_drops_the_thinking_costs_only_the_answer(kinds) -> None:
    """The next turn repeats the prompt up to the answer's opening, and then the answer without its thoughts."""
    chat = Chat(kinds)
    opening, thoughts = [90, 91], numbers(40, 5)
    user, answer = numbers(30, 1), numbers(6, 2)
    chat.ask([*user, *opening], [*thoughts, *answer], boundary=len(user))
    second = [*user, 90, *answer, *numbers(10, 3), *opening]
    reuse = chat.ask(second, numbers(5, 4), boundary=len(second) - 2)
    assert reuse.cached == (len(user) if kinds is MIXED else len(user) + 1)


def test_marks_are_learned_where_prompts_part() -> None:
    chat = Chat(MIXED)
    system = numbers(64, 0)
    assert chat.ask([*system, *numbers(20, 1)], [1]).cached == 0
    second = chat.ask([*system, *numbers(20, 2)], [1])
    assert second.cached == 0 and 64 in second.stops
    assert chat.ask([*system, *numbers(20, 3)], [1]).cached == 64


def test_the_same_prompt_again_is_not_read_again() -> None:
    for kinds in (POSITIONAL, MIXED):
        chat = Chat(kinds)
        prompt = numbers(50, 0)
        chat.ask(prompt, numbers(10, 1))
        again = chat.ask(prompt, numbers(10, 2))
        assert again.cached == len(prompt) - 1 and chat.prefill_read == 0


def test_a_single_token_prompt_reuses_nothing() -> None:
    chat = Chat(POSITIONAL)
    chat.ask([7], [1, 2])
    assert chat.ask([7], [1, 2]).cached == 0


@pytest.mark.parametrize("kinds", [POSITIONAL, MIXED])
def test_a_cancelled_prefill_keeps_what_it_read(kinds) -> None:
    chat = Chat(kinds)
    prompt = numbers(60, 0)
    reuse = chat.prefixes.take(prompt)
    chat.prefill(reuse, prompt, until=35)
    chat.prefixes.put(prompt, reuse.cache, reuse.context, reuse.marks)
    assert chat.ask(prompt, [1]).cached == 35


def test_a_request_that_never_gives_back_costs_only_its_prefix() -> None:
    chat = Chat(MIXED)
    prompt = numbers(40, 0)
    chat.ask(prompt, [1])
    taken = chat.prefixes.take([*prompt, 1, 2, 3])
    assert taken.cached == 40
    del taken
    assert chat.ask([*prompt, 1, 2, 3], [1]).cached == 0


def test_two_answers_in_progress_do_not_touch_each_other() -> None:
    chat = Chat(MIXED)
    prompt = numbers(40, 0)
    chat.ask(prompt, numbers(5, 1))
    first, second = chat.prefixes.take(prompt), chat.prefixes.take(prompt)
    chat.prefill(first, [*prompt, *numbers(20, 2)])
    chat.check(second, prompt, second.cached)
    chat.prefill(second, [*prompt, *numbers(20, 3)])
    chat.check(first, [*prompt, *numbers(20, 2)], 59)


def test_200_prompts_stay_within_the_budget() -> None:
    chat = Chat(("full", "recurrent"), contexts=False)
    one = Chat(("full", "recurrent"), contexts=False)
    one.ask(numbers(30, 0), [1])
    budget = 5 * one.prefixes.nbytes + 100
    chat.prefixes.budget_bytes = budget
    mx.clear_cache()
    peaks = []
    for seed in range(200):
        chat.ask(numbers(30, seed), [1])
        assert chat.prefixes.nbytes <= budget
        assert chat.prefixes.nbytes == sum(
            entry.cache.nbytes + 31 * 4 - 4 + sum(m.nbytes for m in entry.marks) for entry in chat.prefixes._entries
        )
        peaks.append(mx.get_active_memory())
    assert len(chat.prefixes) == 5
    assert max(peaks[100:]) <= max(peaks[:100]) * 1.05
    assert chat.ask([*numbers(30, 199), 1, 2], [1]).cached == 30, "the newest prompt should be kept"
    assert chat.ask(numbers(30, 3), [1]).cached == 0, "the oldest prompts should be gone"


def test_using_an_entry_keeps_it() -> None:
    chat = Chat(POSITIONAL, contexts=False)
    chat.ask(numbers(30, 0), [1])
    chat.prefixes.budget_bytes = int(3.5 * chat.prefixes.nbytes)
    for seed in range(1, 12):
        assert chat.ask(numbers(30, 0), [1]).cached == 29 or seed == 0
        chat.ask(numbers(30, seed), [1])


def test_what_is_larger_than_the_budget_is_not_kept() -> None:
    chat = Chat(POSITIONAL, budget=100)
    chat.ask(numbers(30, 0), [1])
    assert len(chat.prefixes) == 0 and chat.prefixes.nbytes == 0
    silent = Chat(POSITIONAL, budget=0)
    silent.ask(numbers(30, 0), [1])
    assert len(silent.prefixes) == 0
    with pytest.raises(ValueError, match="cannot be negative"):
        PrefixCache(-1, chat.new_cache)


def test_marks_go_before_the_entry_does() -> None:
    chat = Chat(("full", "recurrent"), contexts=False)
    prompt = numbers(40, 0)
    chat.ask(prompt, [1], boundary=20)
    (entry,) = chat.prefixes._entries
    assert entry.marks
    tight = Chat(("full", "recurrent"), budget=entry.nbytes - 1, contexts=False)
    tight.ask(prompt, [1], boundary=20)
    assert not tight.prefixes._entries[0].marks
    assert tight.ask([*prompt, 1, 2], [1]).cached == 40


def test_an_entry_keeps_a_bounded_number_of_marks() -> None:
    chat = Chat(MIXED)
    history: list[int] = []
    for turn in range(12):
        prompt = [*history, *numbers(5, turn)]
        chat.ask(prompt, [1], boundary=len(prompt) - 1)
        history = [*prompt, 1]
    (entry,) = chat.prefixes._entries
    assert len(entry.marks) == MAX_MARKS
    assert entry.marks[0].length == 4


def test_pressure_evicts_the_oldest_first() -> None:
    chat = Chat(POSITIONAL, contexts=False)
    for seed in range(4):
        chat.ask(numbers(30, seed), [1])
    each = chat.prefixes.nbytes // 4
    assert chat.prefixes.evict(each + 1) == 2 * each
    assert chat.prefixes.take([*numbers(30, 0), 1, 1]).cached == 0
    assert chat.prefixes.take([*numbers(30, 3), 1, 1]).cached == 30
    assert chat.prefixes.evict(10**12) == each
    chat.prefixes.clear()
    assert len(chat.prefixes) == 0


def test_another_drafter_starts_with_contexts_of_its_own() -> None:
    chat = Chat(POSITIONAL)
    chat.ask(numbers(30, 0), [1])
    chat.prefixes.use_drafter(CountingContext)
    reuse = chat.prefixes.take([*numbers(30, 0), 1, 2])
    assert reuse.cached == 30 and reuse.context is not None and set(reuse.context.seen) == {-1}
    chat.prefixes.use_drafter(None)
    assert chat.prefixes.take([1, 2, 3]).context is None


def test_a_context_that_lags_or_leads_is_never_paired_with_the_wrong_length() -> None:
    chat = Chat(POSITIONAL)
    prompt = numbers(30, 0)
    for extra in (-3, 2):
        reuse = chat.prefixes.take(prompt)
        chat.prefill(reuse, prompt)
        assert reuse.context is not None
        reuse.context.seen = (prompt + [1, 1])[: 29 + extra]
        chat.prefixes.put(prompt, reuse.cache, reuse.context, reuse.marks)
        chat.check(chat.prefixes.take(prompt), prompt, 29)
        chat.prefixes.clear()


def test_fewer_tokens_than_the_cache_holds_are_an_error() -> None:
    chat = Chat(POSITIONAL)
    reuse = chat.prefixes.take(numbers(10, 0))
    chat.prefill(reuse, numbers(10, 0))
    with pytest.raises(ValueError, match="9 positions but only 3"):
        chat.prefixes.put([1, 2, 3], reuse.cache)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    requests=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(0, 8), st.integers(0, 40)), min_size=2, max_size=12
    ),
    budget=st.sampled_from([3_000, 60_000, 10**9]),
    mixed=st.booleans(),
)
def test_any_history_of_requests_gives_correct_caches(requests, budget, mixed) -> None:
    """Prompts drawn from few shared stems, so that they extend, repeat, cut and leave one another."""
    chat = Chat(("full", "window", "recurrent", "chunked") if mixed else ("full", "quantized"), budget)
    for stem, length, tail, boundary in requests:
        prompt = [*numbers(60, stem // 2)[:length], *numbers(tail, stem)]
        chat.ask(prompt, numbers(4, stem), boundary=boundary or None)
        assert chat.prefixes.nbytes <= budget
