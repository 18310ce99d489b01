"""Typed warnings: what could make a figure wrong, and what to do about it. Values, not prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from macspec.request import Wire

NoticeKind = Literal[
    "arm_failed",
    "battery",
    "canary",
    "cut_short",
    "degenerate",
    "differs",
    "few_prompts",
    "load",
    "low_power",
    "outlier",
    "power",
    "short_answer",
    "skipped",
    "swap",
    "thermal",
]

REMEDIES: dict[NoticeKind, str] = {
    "arm_failed": "Fix the cause named here and run it again; its rows rest on the answers it did give.",
    "battery": "Plug in the power adapter: on battery macOS lowers the clocks.",
    "canary": "Let the machine cool and close other heavy programs, then run it again.",
    "cut_short": "Give it more time: the figures rest on what was measured until then.",
    "degenerate": "These prompts are left out of every headline: repeating text is accepted far too easily.",
    "differs": "Near-ties (small gaps) are rounding between kernels; a large gap is a defect worth reporting.",
    "few_prompts": "Run without --quick or with more suites to get an interval.",
    "load": "Close other programs; the processor was busy with something else.",
    "low_power": "Turn Low Power Mode off in System Settings > Battery.",
    "outlier": "Quiet the machine (backups, indexing, browsers) and use more repeats.",
    "power": "Tokens per joule rest on the other answers; the power command must run until the end.",
    "short_answer": "Such answers are not timed; raise --tokens or choose prompts with longer answers.",
    "skipped": "",
    "swap": "Use a smaller model or close other programs: the machine was paging.",
    "thermal": "Let the machine cool down, or raise the fan speed, and run it again.",
}


@dataclass(frozen=True, slots=True)
class Notice(Wire):
    """One warning of a run."""

    kind: str
    message: str
    arm: str | None = None
    prompt: str | None = None

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return next((text for kind, text in REMEDIES.items() if kind == self.kind), "")


def notice(kind: NoticeKind, message: str, *, arm: str | None = None, prompt: str | None = None) -> Notice:
    """A notice of a known kind."""
    return Notice(kind, message, arm, prompt)
