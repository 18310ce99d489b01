from __future__ import annotations

import pytest
from synthetic_reports import make_report

from macspec.bench.analysis import ALL, analyse, speculation
from macspec.bench.samples import Prompt, RoundSample, Sample

PROMPTS = [Prompt("a", "chat", "x"), Prompt("b", "chat", "y"), Prompt("c", "code", "z")]


def sample(arm: str, prompt: str, speed: float, tokens: tuple[int, ...] = tuple(range(33)), **more: object) -> Sample:
    category = next(p.category for p in PROMPTS if p.id == prompt)
    values: dict[str, object] = {
        "arm": arm,
        "prompt": prompt,
        "category": category,
        "generation_tokens": len(tokens),
        "first_commit_s": 1.0,
        "end_s": 1.0 + (len(tokens) - 1) / speed,
        "tokens": tokens,
    }
    return Sample(**{**values, **more})  # type: ignore[arg-type]  # fields by name


def test_first_round_is_left_out_of_the_rate() -> None:
    eight_first = sample("x", "a", 10, first_round_tokens=8, end_s=1.0 + 25 / 10)
    assert eight_first.decode_rate == pytest.approx(10.0)
    assert sample("x", "a", 10, tuple(range(8))).decode_rate is None
    assert sample("x", "a", 10, error="No answer.").decode_rate is None


def test_rows_are_geometric_and_paired_by_prompt() -> None:
    samples = [sample("plain", p, v) for p, v in (("a", 10), ("b", 20), ("c", 40))]
    samples += [sample("fast", p, v) for p, v in (("a", 20), ("b", 30), ("c", 40))]
    found = analyse(samples, PROMPTS, ["plain", "fast"])
    row = next(r for r in found.rows if r.arm == "fast" and r.category == ALL)
    assert row.tok_per_s == pytest.approx((20 * 30 * 40) ** (1 / 3))
    assert row.ratio_to_plain == pytest.approx((2 * 1.5 * 1) ** (1 / 3))
    assert row.tok_per_s_median == pytest.approx(30)
    assert (row.prompts, row.identical, row.identical_prompts) == (3, True, 3)
    chat = next(r for r in found.rows if r.arm == "fast" and r.category == "chat")
    assert chat.ratio_to_plain == pytest.approx(3**0.5)
    assert [r.category for r in found.rows] == ["chat", "code", ALL] * 2


def test_a_prompt_missing_from_one_arm_does_not_skew_the_ratio() -> None:
    samples = [sample("plain", p, v) for p, v in (("a", 10), ("b", 10), ("c", 1000))]
    samples += [sample("fast", p, v) for p, v in (("a", 20), ("b", 20))]
    row = next(r for r in analyse(samples, PROMPTS, ["plain", "fast"]).rows if r.arm == "fast" and r.category == ALL)
    assert row.ratio_to_plain == pytest.approx(2.0)


def test_degenerate_answers_are_left_out_for_every_arm() -> None:
    loop = (1, 2, 3) * 20
    samples = [sample("plain", "a", 10), sample("fast", "a", 20)]
    samples += [sample("plain", "b", 10, loop), sample("fast", "b", 500, loop)]
    found = analyse(samples, PROMPTS, ["plain", "fast"])
    row = next(r for r in found.rows if r.arm == "fast" and r.category == ALL)
    assert found.excluded == ("b",)
    assert row.ratio_to_plain == pytest.approx(2.0)
    # Equality of text is still judged there.
    assert row.compared_prompts == 2
    assert [n.kind for n in found.notices].count("degenerate") == 1


def test_when_everything_is_degenerate_there_is_no_headline() -> None:
    loop = (1,) * 40
    found = analyse([sample("plain", "a", 10, loop), sample("fast", "a", 20, loop)], PROMPTS, ["plain", "fast"])
    assert all(r.tok_per_s is None and r.ratio_to_plain is None for r in found.rows)


def test_differences_are_found_once_per_arm_and_prompt() -> None:
    other = (*range(12), 999, *range(13, 33))
    samples = [sample("plain", "a", 10), sample("plain", "b", 10)]
    samples += [sample("fast", "a", 20, other, repeat=r) for r in (0, 1)] + [sample("fast", "b", 20)]
    found = analyse(samples, PROMPTS, ["plain", "fast"])
    assert [(d.prompt, d.position, d.expected, d.found) for d in found.differences] == [("a", 12, 12, 999)]
    row = next(r for r in found.rows if r.arm == "fast" and r.category == ALL)
    assert (row.identical, row.identical_prompts, row.compared_prompts) == (False, 1, 2)
    assert "1 prompts answered differently" in next(n.message for n in found.notices if n.kind == "differs")


def test_an_arm_that_contradicts_itself_is_not_identical() -> None:
    other = (*range(12), 999, *range(13, 33))
    samples = [sample("plain", "a", 10), sample("fast", "a", 20), sample("fast", "a", 20, other, repeat=1)]
    row = next(r for r in analyse(samples, PROMPTS, ["plain", "fast"]).rows if r.arm == "fast" and r.category == ALL)
    assert row.identical is False


def test_arms_that_cannot_be_compared_have_no_verdict() -> None:
    samples = [sample("plain", "a", 10), sample("other", "a", 20, tuple(range(50, 90)))]
    found = analyse(samples, PROMPTS, ["plain", "other"], compared=[])
    assert next(r for r in found.rows if r.arm == "other").identical is None
    assert not found.differences


def test_speculation_counters_against_counts_by_hand() -> None:
    rounds = [
        RoundSample(7, 4, 4, 5, 1, 5, 0.5),
        RoundSample(7, 4, 1, 2, 1, 5, 0.5),
        RoundSample(7, 2, 2, 3, 1, 4, 0.5),
        RoundSample(0, 0, 0, 1, 0, 3, 0.5),
    ]
    found = speculation(rounds)
    assert found is not None
    assert (found.num_drafts, found.draft_tokens, found.verified_tokens, found.accepted_tokens) == (3, 21, 10, 7)
    assert found.acceptance_length == pytest.approx(11 / 4)
    assert found.acceptance_rate == pytest.approx(7 / 21)
    assert found.acceptance_rate_verified == pytest.approx(7 / 10)
    assert found.per_position_acceptance_rates == pytest.approx((3 / 3, 2 / 3, 1 / 3, 1 / 3))
    # Only two rounds verified three and four tokens deep.
    assert found.survival == pytest.approx((3 / 3, 2 / 3, 1 / 2, 1 / 2))
    assert found.accepted_histogram == (1, 1, 1, 0, 1)
    assert found.depth_histogram == (1, 0, 1, 0, 2)
    assert speculation([]) is None


def test_outliers_short_answers_and_heat_are_noticed() -> None:
    samples = [sample("plain", "a", v, repeat=r) for r, v in enumerate((10, 10, 3))]
    samples.append(sample("plain", "b", 10, (1, 2, 3), thermal_level=1))
    kinds = [n.kind for n in analyse(samples, PROMPTS, ["plain"]).notices]
    assert kinds == ["short_answer", "outlier", "few_prompts", "thermal"]


def test_failed_answers_are_counted() -> None:
    samples = [sample("plain", "a", 10), sample("url", "a", 1, error="It hangs.")]
    found = analyse(samples, PROMPTS, ["plain", "url"])
    assert "first: It hangs." in next(n.message for n in found.notices if n.kind == "arm_failed")
    assert next(r for r in found.rows if r.arm == "url").tok_per_s is None


def test_a_whole_synthetic_run() -> None:
    report = make_report({"plain": 40.0, "depth 3": 80.0})
    best = report.best()
    assert best is not None and best.arm == "depth 3"
    assert best.ratio_low is not None and best.ratio_high is not None
    assert best.ratio_low < 2.0 < best.ratio_high
