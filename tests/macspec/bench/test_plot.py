from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from synthetic_reports import make_report

from macspec.bench import drawing, plot
from macspec.bench.document import Report

SVG = "{http://www.w3.org/2000/svg}"
SPEEDS = {"plain": 40.0, "depth 1": 50.0, "depth 3": 80.0, "mlx_lm": 39.0}


def svg(report: Report) -> str:
    return drawing.to_svg(plot.draw(report))


def numbers(element: ElementTree.Element, *names: str) -> list[float]:
    return [float(element.get(name, "0").rstrip("%")) for name in names]


@pytest.mark.parametrize(
    "report", [make_report(SPEEDS), make_report({"plain": 40.0}), Report()], ids=["full", "plain", "empty"]
)
def test_drawing_is_well_formed_and_inside_its_frame(report: Report) -> None:
    root = ElementTree.fromstring(svg(report))
    _, _, width, height = (float(x) for x in root.get("viewBox", "").split())
    for rect in root.iter(f"{SVG}rect"):
        if rect.get("width") != "100%":
            x, y, w, h = numbers(rect, "x", "y", "width", "height")
            assert 0 <= x and x + w <= width and 0 <= y and y + h <= height + 0.1
    for text in root.iter(f"{SVG}text"):
        x, y = numbers(text, "x", "y")
        assert 0 <= x <= width and 0 <= y <= height
    assert "nan" not in svg(report)


def test_bar_heights_are_proportional_to_speed() -> None:
    report = make_report({"plain": 40.0, "depth 3": 80.0}, noise=0.0)
    root = ElementTree.fromstring(svg(report))
    heights = [numbers(r, "height")[0] for r in root.iter(f"{SVG}rect") if r.get("fill") == plot.COLOURS[1]]
    plain = [numbers(r, "height")[0] for r in root.iter(f"{SVG}rect") if r.get("fill") == plot.COLOURS[0]]
    assert heights[0] == pytest.approx(2 * plain[0], abs=0.2)


def test_names_are_escaped() -> None:
    report = make_report({"plain": 40.0, "<script>&": 50.0})
    assert "<script>" not in svg(report)
    ElementTree.fromstring(svg(report))


def test_many_arms_keep_plain_and_strangers() -> None:
    speeds = {"plain": 40.0, **{f"depth {d}": 40.0 + d for d in range(1, 12)}, "mlx_lm": 39.0}
    text = svg(make_report(speeds, prompts=8))
    for kept in ("plain", "depth 11", "depth 10"):
        assert f">{kept}</text>" in text
    assert ">depth 1</text>" not in text


@pytest.mark.parametrize(("highest", "step"), [(1, 0.2), (5, 1), (42, 10), (100, 20), (999, 200), (0.5, 0.1)])
def test_round_steps(highest: float, step: float) -> None:
    assert plot._round_step(highest) == pytest.approx(step)
