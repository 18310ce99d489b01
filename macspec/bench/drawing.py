"""A drawing of a few plain shapes, written as SVG or painted as PNG. Lengths are pixels, y grows downwards."""

from __future__ import annotations

import io
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

INK, PAPER = "#1f2430", "#ffffff"
#: Fonts to paint with, the first that is here; the last resort is Pillow's own, which knows ASCII only.
FONTS = ("Helvetica.ttc", "Arial.ttf", "LiberationSans-Regular.ttf", "DejaVuSans.ttf")
_ASCII = str.maketrans({"×": "x", "τ": "L", "–": "-", "…": "...", "·": ",", "→": "to"})
#: PNG pixels per unit, and how much finer it is painted before it is scaled down, which smooths edges.
PNG_SCALE, PNG_FINER = 2, 2

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points, with a dot of radius ``dots`` at each when that is above 0."""

    points: tuple[tuple[float, float], ...]
    colour: str
    width: float
    dots: float = 0.0


@dataclass(frozen=True, slots=True)
class Text:
    """Text whose baseline is at ``y``."""

    x: float
    y: float
    text: str
    size: int
    colour: str = INK
    anchor: Anchor = "start"
    bold: bool = False


Shape = Rect | Line | Text


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes on paper, painted in order."""

    width: float
    height: float
    shapes: tuple[Shape, ...]


def to_svg(drawing: Drawing) -> str:
    """An SVG document with fonts every system has and no script."""
    body = "\n".join(_svg(shape) for shape in drawing.shapes)
    width, height = round(drawing.width), round(drawing.height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" role="img">\n'
        f'<rect width="100%" height="100%" fill="{PAPER}"/>\n{body}\n</svg>\n'
    )


def _svg(shape: Shape) -> str:
    if isinstance(shape, Rect):
        return (
            f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{max(shape.height, 0):.1f}" '
            f'fill="{shape.colour}"/>'
        )
    if isinstance(shape, Line):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        line = f'<polyline points="{points}" fill="none" stroke="{shape.colour}" stroke-width="{shape.width:g}"/>'
        dots = [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{shape.dots:g}" fill="{shape.colour}"/>' for x, y in shape.points
        ]
        return "\n".join([line, *dots] if shape.dots else [line])
    weight = ' font-weight="600"' if shape.bold else ""
    return (
        f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size}" fill="{shape.colour}" '
        f'text-anchor="{shape.anchor}"{weight}>{escape(shape.text)}</text>'
    )


def to_png(drawing: Drawing) -> bytes:
    """The same picture as a PNG of `PNG_SCALE` pixels per unit."""
    from PIL import Image, ImageDraw

    scale = PNG_SCALE * PNG_FINER
    size = (round(drawing.width * PNG_SCALE), round(drawing.height * PNG_SCALE))
    image = Image.new("RGB", (size[0] * PNG_FINER, size[1] * PNG_FINER), PAPER)
    painter = ImageDraw.Draw(image)
    for shape in drawing.shapes:
        if isinstance(shape, Rect):
            if shape.width > 0 and shape.height > 0:
                corners = (shape.x, shape.y, shape.x + shape.width, shape.y + shape.height)
                painter.rectangle([round(c * scale) for c in corners], fill=shape.colour)
        elif isinstance(shape, Line):
            points = [(x * scale, y * scale) for x, y in shape.points]
            painter.line(points, fill=shape.colour, width=max(1, round(shape.width * scale)), joint="curve")
            radius = shape.dots * scale
            for x, y in points if radius else ():
                painter.ellipse((x - radius, y - radius, x + radius, y + radius), fill=shape.colour)
        else:
            font, known = _font(shape.size * scale)
            painter.text(
                (shape.x * scale, shape.y * scale),
                shape.text if known else shape.text.translate(_ASCII).encode("ascii", "replace").decode(),
                font=font,
                fill=shape.colour,
                anchor={"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor],
                stroke_width=scale // 4 if shape.bold else 0,
            )
    buffer = io.BytesIO()
    image.resize(size, Image.Resampling.LANCZOS).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _font(size: int) -> tuple[Any, bool]:
    """A font of this size, and whether it has more than ASCII."""
    from PIL import ImageFont

    for name in FONTS:
        try:
            return ImageFont.truetype(name, size), True
        except OSError:
            continue
    return ImageFont.load_default(size), False
