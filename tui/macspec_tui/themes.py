"""Colours: dark and light for terminals with many colours, two that use the terminal's own sixteen, and none."""

from __future__ import annotations

import os
from collections.abc import Mapping

from textual.theme import BUILTIN_THEMES, Theme

DARK = Theme(
    name="macspec-dark",
    primary="#7aa2f7",
    secondary="#9ece6a",
    accent="#e0af68",
    foreground="#d5d9e4",
    background="#16181f",
    surface="#1d2029",
    panel="#252935",
    success="#9ece6a",
    warning="#e0af68",
    error="#f7768e",
    dark=True,
    variables={"block-cursor-text-style": "none", "footer-key-foreground": "#7aa2f7"},
)
LIGHT = Theme(
    name="macspec-light",
    primary="#2f5fb3",
    secondary="#3c7a2a",
    accent="#8a5a00",
    foreground="#23262f",
    background="#fbfbf8",
    surface="#f1f1ec",
    panel="#e6e6df",
    success="#3c7a2a",
    warning="#8a5a00",
    error="#b3243c",
    dark=False,
    variables={"block-cursor-text-style": "none", "footer-key-foreground": "#2f5fb3"},
)
THEMES = {
    "dark": DARK,
    "light": LIGHT,
    "ansi": BUILTIN_THEMES["ansi-dark"],
    "ansi-light": BUILTIN_THEMES["ansi-light"],
}
NAMES = ("auto", *THEMES)


def resolve(name: str | None, environ: Mapping[str, str] = os.environ, *, light: bool | None = None) -> str:
    """The theme to use for a name in `NAMES`; ``auto`` and None follow the terminal.

    Without colours (``NO_COLOR``) the terminal's own foreground and background are kept. With sixteen colours or fewer
    its palette is used. ``light`` is what the terminal said of its background; when it is None, ``COLORFGBG`` counts
    where it is set, else the background is taken for dark.
    """
    if name is not None and name != "auto":
        return name
    if light is None:
        light = _light(environ)
    if "NO_COLOR" in environ or few_colours(environ):
        return "ansi-light" if light else "ansi"
    return "light" if light else "dark"


def worth_asking(name: str | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the theme depends on the terminal's background and the terminal can be asked for it."""
    return name in (None, "auto") and "NO_COLOR" not in environ and not few_colours(environ)


def few_colours(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal has sixteen colours or fewer."""
    if environ.get("COLORTERM") in ("truecolor", "24bit"):
        return False
    term = environ.get("TERM", "")
    return term in ("", "dumb", "linux", "ansi", "vt100", "vt220", "xterm", "screen") or term.endswith("-16color")


def _light(environ: Mapping[str, str]) -> bool:
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    return background in ("7", "15")
