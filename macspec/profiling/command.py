"""``macspec profile``: measure what verification costs here and show it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from macspec.cli_options import add_engine_options, engine_options
from macspec.download import ensure
from macspec.errors import UnsupportedError

if TYPE_CHECKING:
    from macspec.profiling.store import Profile

WIDTH = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--reprofile", action="store_true", help="measure again even if the stored profile fits")
    parser.add_argument("--json", action="store_true", help="print the profile as JSON")
    add_engine_options(parser)


def run(options: argparse.Namespace) -> int:
    """Show the pair's profile, measured if need be; returns the exit code."""
    from macspec.progress import load_progress
    from macspec.runtime import Runtime

    ensure(options)
    said: list[str] = []
    with load_progress() as progress:
        engine = Runtime.load(**engine_options(options), progress=progress, profile=False, say=said.append)
        if engine.drafter is None:
            raise UnsupportedError(
                f"There is nothing to profile: {engine.drafter_reason or 'no drafter is loaded'}.", param="drafter"
            )
        maker = engine.maker
        profile = maker.prepare(again=options.reprofile)
    for sentence in dict.fromkeys([*said, *profile.warnings]):
        print(sentence, file=sys.stderr)
    if options.json:
        print(json.dumps({**profile.to_json(), "file": str(maker.store.path(profile.identity))}, indent=1))
    else:
        print("\n".join(chart(profile)))
        print(f"kept in {maker.store.path(profile.identity)}")
    return 0


def chart(profile: Profile) -> list[str]:
    """The ladder as lines of text: one bar per row count at the shortest context, then the other contexts."""
    ladder, key = profile.ladder, profile.identity
    lines = [
        f"{key.get('target')} with {key.get('drafter')}, {key.get('dtype')}, on {key.get('chip')}",
        f"measured {time.strftime('%Y-%m-%d %H:%M', time.localtime(profile.measured_at))}, "
        f"median of {', '.join(str(n) for n in ladder.notes.get('repeats', ['?']))} passes each",
        "",
        "rows   " + _columns([f"{context} cached" for context in ladder.contexts]) + "  per row more",
    ]
    most = max(max(row) for row in ladder.verify)
    for rows in range(1, ladder.max_rows + 1):
        times = [row[rows - 1] for row in ladder.verify]
        more = "" if rows == 1 else f"{times[0] - ladder.verify[0][rows - 2]:+7.2f}"
        bar = "█" * max(1, round(WIDTH * times[0] / most))
        lines.append(f"{rows:>4}   " + _columns([f"{ms:.2f} ms" for ms in times]) + f"  {more:>12}  {bar}")
    lines.append("draft  " + _columns([f"{ms:.2f} ms" for ms in ladder.draft]))
    if ladder.replay:
        lines.append("replay " + ", ".join(f"{ms:.2f}" for ms in ladder.replay) + " ms for 0, 1, 2, ... accepted")
    lines += ["", _summary(ladder.verify[0], ladder.draft[0])]
    return lines


def _columns(words: Sequence[str]) -> str:
    return "".join(f"{word:>14}" for word in words)


def _summary(verify: Sequence[float], draft: float) -> str:
    """One sentence: what drafting has to bring to pay here."""
    best = min(range(1, len(verify)), key=lambda depth: (verify[depth] + draft) / (depth + 1))
    need = (verify[best] + draft) / verify[0]
    if need >= best + 1:
        return "No depth can pay here, not even with every draft token accepted: plain decoding stays fastest."
    slope: Any = (verify[-1] / verify[0] - 1.0) / (len(verify) - 1)
    return (
        f"A row more costs {slope:.0%} of a step on average. Depth {best} pays from {need:.2f} tokens per round on, "
        f"of {best + 1} it can give."
    )
