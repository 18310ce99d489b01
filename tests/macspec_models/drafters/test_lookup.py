"""Prompt lookup, what it learns, and the choice between it and a model drafter."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from macspec_models.drafters.choice import ProposerChoice, expected_accepted
from macspec_models.drafters.combined import CombinedDrafter
from macspec_models.drafters.interface import DraftBlock
from macspec_models.drafters.lookup import LookupDrafter
from macspec_models.drafters.suffix import GRAMS, LONGEST, Match, MatchRecord, SuffixIndex


def brute_force(tokens: Sequence[int], limit: int) -> tuple[int, tuple[int, ...]] | None:
    """Longest earlier occurrence of the end, the newest among equals, by scanning."""
    best, after = 0, 0
    for end in range(len(tokens) - 1, 0, -1):
        reach = 0
        while reach < min(LONGEST, end) and tokens[end - 1 - reach] == tokens[-1 - reach]:
            reach += 1
        if reach > best:
            best, after = reach, end
    if best < min(GRAMS):
        return None
    copied = list(tokens)
    for place in range(limit):
        copied.append(copied[after + place])
    return best, tuple(copied[len(tokens) :])


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 6))
def test_index_finds_what_a_scan_finds(tokens: list[int], limit: int) -> None:
    index = SuffixIndex()
    index.follow(tokens)
    found, wanted = index.match(limit), brute_force(tokens, limit)
    # Few tokens make one pair occur often; the index then knows only the newest occurrences, here all of them.
    if wanted is None:
        assert found is None
    else:
        assert found == Match(wanted[1], wanted[0])


@given(st.lists(st.tuples(st.integers(0, 12), st.lists(st.integers(0, 2), max_size=8)), max_size=6))
def test_cuts_and_regrowth_leave_no_trace(steps: list[tuple[int, list[int]]]) -> None:
    index, tokens = SuffixIndex(), [0, 1, 0, 1]
    index.follow(tokens)
    for keep, more in steps:
        tokens = tokens[:keep] + more
        index.cut(keep)
        index.follow(tokens)
        found, wanted = index.match(4), brute_force(tokens, 4)
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            assert (found.length, found.tokens) == wanted


def test_repetition_goes_on() -> None:
    index = SuffixIndex()
    index.follow([5, 9, 9, 9, 9])
    assert index.match(6) == Match((9,) * 6, 3)
    index.follow([5, 9, 9, 9, 9, 1, 2, 3, 1, 2, 3])
    assert index.match(5) == Match((1, 2, 3, 1, 2), 3)


def test_another_sequence_is_indexed_anew() -> None:
    index = SuffixIndex()
    index.follow([1, 2, 3, 1, 2])
    index.follow([7, 8, 9, 7, 8])
    assert index.match(1) == Match((9,), 2)
    index.follow([7, 8])
    assert index.match(1) is None
    assert len(index) == 2


def test_record_learns_from_what_followed() -> None:
    record = MatchRecord()
    first = record.share(2)
    for _ in range(60):
        record.learn(Match((1, 2, 3), 2), [9, 9, 9])
    assert record.share(2) < 0.1 < first
    assert record.share(3) == pytest.approx(0.45)  # never reached: still the prior
    for _ in range(200):
        record.learn(Match((1, 2, 3), 2), [1, 2, 3])
    assert record.share(2) > 0.85
    assert all(0 < chance < 1 for chance in record.chances(Match((1,) * 40, 2)))


def test_record_learns_nothing_from_tokens_not_known_yet() -> None:
    record = MatchRecord()
    before = record.chances(Match((1, 2, 3), 2))
    record.learn(Match((1, 2, 3), 2), [])
    assert record.chances(Match((1, 2, 3), 2)) == before


@given(st.lists(st.floats(0.01, 0.99), max_size=8))
def test_expected_accepted_is_the_mean_over_outcomes(chances: list[float]) -> None:
    mean, survival = 0.0, 1.0
    for accepted, chance in enumerate(chances):
        mean += accepted * survival * (1 - chance)
        survival *= chance
    mean += len(chances) * survival
    assert expected_accepted(chances) == pytest.approx(mean)


def test_choice_weighs_the_cost_of_drafting() -> None:
    choice = ProposerChoice(draft_share=0.0)
    for _ in range(100):
        choice.learn(3)
    assert choice.model_expects == pytest.approx(3, abs=0.2)
    assert not choice.prefers_lookup([])
    assert not choice.prefers_lookup([0.9] * 3)
    assert choice.prefers_lookup([0.98] * 10)
    choice.draft_share = 1.0
    assert choice.prefers_lookup([0.9] * 3)


class FakeModel:
    """A model drafter that is wrong, or right about the first token when it is told the text."""

    kind, taps, max_depth = "dflash", (1, 2), 10

    def __init__(self, text: Sequence[int] = ()) -> None:
        self.text = text

    def new_context(self) -> Any:
        return LookupDrafter().new_context()

    def extend(self, context: Any, features: mx.array) -> None:
        context.length += features.shape[0]

    def draft(self, context: Any, anchor: int, history: Sequence[int], *, limit: Any = None, noise: Any = None) -> Any:
        count = self.max_depth if limit is None else min(limit, self.max_depth)
        tokens = [*self.text[len(history) : len(history) + 1], *[-1] * self.max_depth]
        return DraftBlock(mx.array(tokens[:count], dtype=mx.int32), mx.zeros((count, 3)))


def run(drafter: Any, text: Sequence[int], prompt: int, depth: int = 10) -> dict[str, int]:
    """Generate ``text[prompt:]`` as a target that writes just that would; counts rounds by source."""
    context = drafter.new_context()
    drafter.extend(context, mx.zeros((prompt - 1, 0)))
    position, sources = prompt, {"rounds": 0}
    while position < len(text):
        block = drafter.draft(context, text[position - 1], text[:position], limit=depth)
        accepted = 0
        for token in block.tokens.tolist():
            if position + accepted >= len(text) or token != text[position + accepted]:
                break
            accepted += 1
        drafter.extend(context, mx.zeros((accepted + 1, 0)))
        position += accepted + 1
        sources["rounds"] += 1
        sources[block.source] = sources.get(block.source, 0) + 1
        assert context.length == position - 1
    return sources


def test_lookup_flies_on_repetition_and_is_silent_on_noise() -> None:
    source = random.Random(1)
    words = [source.randrange(5000) for _ in range(120)]
    repeated = run(LookupDrafter(), words + words, len(words) + 3)
    assert repeated["rounds"] <= 120 / 8
    noise = run(LookupDrafter(), words, 10)
    assert noise["rounds"] == 110


def test_combined_gives_repetition_to_lookup_and_the_rest_to_the_model() -> None:
    source = random.Random(2)
    words = [source.randrange(5000) for _ in range(150)]
    model = FakeModel()
    combined = CombinedDrafter(model)
    assert (combined.kind, combined.taps, combined.max_depth) == ("dflash+lookup", (1, 2), 10)
    counts = run(combined, words, 10)
    assert counts == {"rounds": 140, "dflash": 140}
    counts = run(combined, words + words, len(words) + 3)
    assert counts["lookup"] >= 12
    assert counts["rounds"] <= 30


def test_combined_learns_the_model_only_from_rounds_it_drafted() -> None:
    combined = CombinedDrafter(FakeModel())
    context = combined.new_context()
    before = combined.choice.model_expects
    combined.extend(context, mx.zeros((50, 0)))  # a prefill chunk
    assert combined.choice.model_expects == before
    combined.draft(context, 1, [1])
    combined.extend(context, mx.zeros((1, 0)))  # nothing accepted
    after = combined.choice.model_expects
    assert after < before
    combined.extend(context, mx.zeros((1, 0)))  # a plain step
    assert combined.choice.model_expects == after


def test_misleading_repetition_is_unlearned() -> None:
    """Text that repeats pairs and then goes elsewhere must end with the model drafting nearly always."""
    source = random.Random(3)
    text: list[int] = []
    for _ in range(300):
        text += [7, 8, source.randrange(10, 5000)]
    combined = CombinedDrafter(FakeModel(text))
    run(combined, text, 30)
    late = run(combined, text, 30)
    assert late.get("lookup", 0) <= 0.1 * late["rounds"]


def test_when_neither_is_any_good_the_free_one_drafts() -> None:
    text = [7, 8, 9] * 3 + [7, 8, 1, 7, 8, 2, 7, 8, 3, 7, 8, 4, 7, 8, 5, 7, 8, 6] * 20
    combined = CombinedDrafter(FakeModel())
    combined.choice.draft_share = 0.5
    assert run(combined, text, 9)["lookup"] > 0


def test_contexts_trim_and_fork() -> None:
    combined = CombinedDrafter(FakeModel())
    context = combined.new_context()
    combined.extend(context, mx.zeros((8, 0)))
    text = [1, 2, 3, 4, 1, 2, 3, 4, 1]
    combined.draft(context, 1, text)
    other = context.fork()
    context.trim(3)
    assert (context.length, other.length) == (3, 8)
    assert combined.draft(other, 1, text, limit=2).tokens.shape == (2,)
    assert context.arrays() == [] and context.nbytes == 0
    restored = combined.new_context()
    restored.fill(context.export(), 3)
    restored.skip(2)
    assert restored.length == 5


def test_free_drafts_run_no_model_and_are_settled_too() -> None:
    model = FakeModel()
    combined = CombinedDrafter(model)
    context = combined.new_context()
    text = [1, 2, 3, 4, 5, 1, 2, 3]
    combined.extend(context, mx.zeros((len(text) - 1, 0)))
    expected = combined.choice.model_expects
    block = combined.draft_free(context, text, limit=2)
    assert (block.tokens.tolist(), block.source) == ([4, 5], "lookup")
    before = combined.record.share(3)
    combined.extend(context, mx.zeros((1, 0)))
    assert combined.draft_free(context, [*text, 9], limit=4).tokens.shape == (0,)
    assert combined.record.share(3) < before  # 4 was proposed and 9 came
    assert combined.choice.model_expects == expected


def test_nothing_wanted_gives_nothing() -> None:
    drafter = LookupDrafter()
    block = drafter.draft(drafter.new_context(), 1, [1, 2, 1, 2], limit=0)
    assert block.tokens.shape == (0,) and block.source == "lookup"


def test_decisions_need_no_mlx() -> None:
    code = (
        "import sys, macspec_models.drafters.suffix, macspec_models.drafters.choice;"
        "sys.exit(any(name.startswith('mlx') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
