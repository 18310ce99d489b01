from __future__ import annotations

import re

import pytest
from synthetic_engines import some_prompts
from synthetic_reports import make_report

from macspec.bench import report as reports
from macspec.bench.document import Report
from macspec.bench.notices import REMEDIES, notice

SPEEDS = {"plain": 40.0, **{f"depth {d}": 40.0 + 10 * d for d in (1, 2, 3, 4, 7)}, "mlx_lm": 39.0}
REPORT = make_report(SPEEDS)


def test_table_fits_a_terminal_and_agrees_with_the_rows() -> None:
    text = reports.table(REPORT)
    assert max(len(line) for line in text.splitlines()) <= 80
    for row in REPORT.results:
        if row.category == "all":
            line = next(x for x in text.splitlines() if x.startswith(row.arm + " "))
            assert f"{row.tok_per_s:.1f}" in line and f"{row.ratio_to_plain:.2f}" in line
    assert "Apple M6" in text and "tiny@abc float32, drafter dflash" in text
    assert "16 prompts × 2, up to 64 tokens, greedy" in text


def test_card_fits_a_post_and_agrees_with_the_rows() -> None:
    text = reports.card(REPORT)
    assert len(text.splitlines()) <= 15
    best = REPORT.best()
    assert best is not None
    line = next(x for x in text.splitlines() if x.startswith("| all "))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    plain = REPORT.row("plain")
    assert plain is not None
    assert cells == [
        "all",
        f"{plain.tok_per_s:.1f}",
        f"{best.tok_per_s:.1f}",
        f"{best.ratio_to_plain:.2f}",
        f"{best.acceptance_length:.2f}",
    ]
    assert "output identical to plain greedy: 16/16" in text
    assert REPORT.id in text
    tables = [x for x in text.splitlines() if x.startswith("|")]
    assert len({x.count("|") for x in tables}) == 1


def test_many_categories_still_fit() -> None:
    crowded = make_report({"plain": 40.0, "depth 3": 80.0}, prompts=4)
    rows = tuple(
        reports.Row(arm=r.arm, category=f"category-{i}", tok_per_s=1.0, ratio_to_plain=1.0)
        for r in crowded.results
        if r.category == "all"
        for i in range(15)
    )
    import dataclasses

    crowded = dataclasses.replace(crowded, results=(*rows, *crowded.results))
    assert len(reports.card(crowded).splitlines()) <= 15
    assert crowded.id in reports.card(crowded)
    assert max(len(x) for x in reports.table(crowded).splitlines()) <= 80


def test_a_difference_is_told_with_place_and_gap() -> None:
    import dataclasses

    prompt = some_prompts(1)[0]
    other = (*range(9), 77, *range(10, 64))
    same = tuple(range(64))
    report = make_report(
        {"plain": 40.0, "depth 3": 80.0}, answers={"plain": {prompt.id: same}, "depth 3": {prompt.id: other}}
    )
    assert len(report.differences) == 1
    with_gap = dataclasses.replace(report, differences=(dataclasses.replace(report.differences[0], gap=-0.031),))
    assert "identical to plain greedy: 15/16 (first difference at token 9, logit gap 0.031)" in reports.card(with_gap)


def test_reports_of_nothing_do_not_fail() -> None:
    for text in (reports.table(Report()), reports.card(Report())):
        assert "nan" not in text and "None" not in text


def test_plain_alone() -> None:
    report = make_report({"plain": 40.0})
    assert "| plain tok/s |" in reports.card(report)
    assert "plain" in reports.table(report)


def test_warnings_carry_their_remedy() -> None:
    import dataclasses

    report = dataclasses.replace(REPORT, warnings=(notice("battery", "The machine ran on battery."),))
    assert re.search(r"Note: The machine ran on battery\.\s+Plug in", reports.table(report))
    assert "warnings: battery" in reports.card(report)
    assert all(text == "" or text.endswith(".") for text in REMEDIES.values())


@pytest.mark.parametrize(("counts", "text"), [((), ""), ((0,), "▁"), ((1, 8, 4), "▂█▅"), ((5, 0), "█▁")])
def test_bars(counts: tuple[int, ...], text: str) -> None:
    assert reports.bars(counts) == text


def test_long_words_are_broken() -> None:
    assert all(len(line) <= 80 for line in reports.wrap("x" * 300 + " y"))
