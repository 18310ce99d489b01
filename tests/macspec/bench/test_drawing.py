from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from macspec.bench import drawing
from macspec.bench.drawing import PNG_SCALE, Drawing, Line, Rect, Text

BLUE, RED = "#0000ff", "#ff0000"
PICTURE = Drawing(
    100,
    60,
    (
        Rect(10, 10, 20, 30, BLUE),
        Rect(80, 10, 5, -1, RED),
        Line(((40.0, 30.0), (90.0, 30.0)), RED, 4, dots=6),
        Text(50, 55, "τ × <2>", 10, bold=True, anchor="middle"),
    ),
)


def pixel(image: Image.Image, x: float, y: float) -> object:
    return image.getpixel((round(x * PNG_SCALE), round(y * PNG_SCALE)))


@pytest.mark.parametrize("fonts", [drawing.FONTS, ()], ids=["system fonts", "no fonts"])
def test_png_shows_the_shapes(monkeypatch: pytest.MonkeyPatch, fonts: tuple[str, ...]) -> None:
    monkeypatch.setattr(drawing, "FONTS", fonts)
    image = Image.open(io.BytesIO(drawing.to_png(PICTURE)))
    assert (image.format, image.size) == ("PNG", (100 * PNG_SCALE, 60 * PNG_SCALE))
    assert pixel(image, 20, 25) == (0, 0, 255)
    assert pixel(image, 65, 30) == (255, 0, 0)
    assert pixel(image, 40, 26) == (255, 0, 0)
    assert pixel(image, 5, 5) == pixel(image, 82, 9.5) == (255, 255, 255)
    text = image.crop((30 * PNG_SCALE, 44 * PNG_SCALE, 70 * PNG_SCALE, 58 * PNG_SCALE)).convert("L")
    darkest, _ = text.getextrema()
    assert isinstance(darkest, (int, float)) and darkest < 100


def test_svg_has_the_same_shapes() -> None:
    root = ElementTree.fromstring(drawing.to_svg(PICTURE))
    tags = [element.tag.rpartition("}")[2] for element in root]
    assert tags == ["rect", "rect", "rect", "polyline", "circle", "circle", "text"]
    assert root[-1].text == "τ × <2>" and root[-1].get("font-weight") == "600"
    assert root[2].get("height") == "0.0"
