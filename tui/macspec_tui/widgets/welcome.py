"""What an empty conversation shows: what is loaded, and where to begin."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from macspec.worker.protocol import EngineInfo
from macspec_tui import figures
from macspec_tui.clean import for_display

_HINTS = (
    ("F1", "keys and commands"),
    ("/sessions", "earlier conversations"),
    ("/model NAME", "another model"),
    ("^P", "speculation panel"),
)


class Welcome(Static):
    """Shown until something is said."""

    def __init__(self) -> None:
        super().__init__("", id="welcome")
        self._info: EngineInfo | None = None
        self._drawn = False

    def show(self, info: EngineInfo | None) -> None:
        """Say what is loaded; None while nothing is."""
        if info == self._info and self._drawn:
            return
        self._info, self._drawn = info, True
        parts: list[tuple[str, str]] = [("macspec chat\n", "bold")]
        parts += [(f"{for_display(line)}\n", "") for line in _loaded(info)]
        width = max(len(key) for key, _ in _HINTS)
        for key, meaning in _HINTS:
            parts += [(f"\n{key:<{width}}", "bold"), (f"  {meaning}", "")]
        self.update(Content.assemble(*parts))


def _loaded(info: EngineInfo | None) -> list[str]:
    if info is None:
        return []
    lines = [f"{info.model}, {figures.size(info.parameters_bytes)} {info.dtype}".rstrip()]
    if info.drafter is not None:
        lines.append(f"drafts by {info.drafter}; every word is the model's own")
    return lines
