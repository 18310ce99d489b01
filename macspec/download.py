"""Have a command's models on this machine: what is missing is named with its size, asked about, then downloaded.

Used by every command that loads a model, before it loads one. No MLX here.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from macspec.errors import RequestError

if TYPE_CHECKING:
    from macspec_models.hub import Listing
    from macspec_models.registry import Pair, Source


def add_download_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """``--yes`` and ``--offline``."""
    parser.add_argument("--yes", action="store_true", help="download without asking")
    parser.add_argument("--offline", action="store_true", help="use only what is on this machine")


def ensure(options: argparse.Namespace) -> None:
    """Download what ``options.model`` and ``options.drafter`` name and this machine lacks, if the person agrees.

    A target, or a drafter asked for by name, must come; a known model's own drafter may stay away, which leaves plain
    decoding. Without a name, a Mac is offered the best known pair that fits its memory.

    Raises:
        RequestError: nobody can be asked; the sentence says what, how large, and the command that fetches it.
        ModelError: no such model, no network, no space, or the person said no.
    """
    if options.offline:
        # The engine may be another process, and huggingface_hub reads its own variable.
        os.environ["MACSPEC_OFFLINE"] = "1"
    if options.model is None and options.drafter is None:
        if sys.platform == "darwin":
            _offer_default(options)
        return
    from macspec_models import hub
    from macspec_models.registry import split_drafter

    drafter, _ = split_drafter(options.drafter)
    own = None if options.model is None else _ensure_target(options, with_own=drafter is None)
    if own is not None:
        _fetch_optional(own, options)
    elif drafter not in (None, "none", "lookup") and (source := hub.absent(drafter, part="drafter")) is not None:
        _fetch_needed(drafter, [source], options)


def _offer_default(options: argparse.Namespace) -> None:
    """Offer the best pair for this Mac; the small embedded one runs when it is refused or nobody can be asked."""
    from macspec.machine import describe
    from macspec_models import hub, registry

    best = registry.best_for(describe().memory_bytes or 0)
    missing = _absent(best)
    if best.name == registry.EMBEDDED or not missing or hub.offline():
        return
    if not options.yes:
        if not _can_ask():
            return
        print(f"This Mac can run {best.title} ({best.name}). The small embedded model runs otherwise.", file=sys.stderr)
    fetch([(source.repo, source.revision) for source in missing], yes=options.yes)


def _ensure_target(options: argparse.Namespace, *, with_own: bool) -> Source | None:
    """Fetch the target if it is missing, ``with_own`` drafter where one is known; or return that if only it is."""
    from macspec_models import hub, registry

    source = hub.absent(options.model)
    pair = registry.find(options.model)
    own = None if pair is None or not with_own else hub.absent(pair.name, part="drafter")
    if source is None:
        return own
    _fetch_needed(options.model, [source] if own is None else [source, own], options)
    return None


def _absent(pair: Pair) -> list[Source]:
    """What of a pair is not here."""
    from macspec_models import hub

    found = (hub.absent(pair.name, part=part) for part in ("target", "drafter"))
    return [source for source in found if source is not None]


def _fetch_needed(name: str, sources: Sequence[Source], options: argparse.Namespace) -> None:
    from macspec_models import hub
    from macspec_models.errors import DownloadError

    if hub.offline():
        return  # loading says that it is not here and the network is switched off
    repos = [(source.repo, source.revision) for source in sources]
    if not options.yes and not _can_ask():
        raise RequestError(
            f"{name} is not on this machine yet{_size_of(sources)}. Fetch it with: macspec models pull {name} --yes",
            param="model",
        )
    if not fetch(repos, yes=options.yes):
        raise DownloadError(f"Without {name} there is nothing to run. Fetch it later with: macspec models pull {name}")


def _fetch_optional(source: Source, options: argparse.Namespace) -> None:
    """Offer the drafter of a model that is here already; without it decoding is plain and says why."""
    from macspec_models import hub

    if hub.offline() or not (options.yes or _can_ask()):
        return
    fetch([(source.repo, source.revision)], yes=options.yes)


def _size_of(sources: Sequence[Source]) -> str:
    """`` (1.2 GB to download)`` as the hub says, or as the registry does when the hub cannot be asked."""
    from macspec_models import hub
    from macspec_models.errors import DownloadError

    try:
        needed: float = sum(hub.missing(hub.listing(source.repo, source.revision)) for source in sources)
    except DownloadError:
        needed = 1e9 * sum(source.size_gb for source in sources)
    return f" ({_bytes(needed)} to download)" if needed else ""


def fetch(repos: Sequence[tuple[str, str | None]], *, yes: bool) -> list[Path]:
    """Show what is to be downloaded, ask, and download: the folders, none when the person said no.

    Args:
        repos: repositories with revisions, None for the newest.

    Raises:
        RequestError: nobody can be asked.
        ModelError: the hub, the network or the disk; the sentence says which.
    """
    from macspec_models import hub

    found = [hub.listing(repo, revision) for repo, revision in repos]
    needed = sum(hub.missing(item) for item in found)
    for item in found:
        print(
            f"{item.repo}@{item.commit[:12]}: {_bytes(item.size)}, {_bytes(hub.missing(item))} to download",
            file=sys.stderr,
        )
    hub.check_disk(*found)
    if needed and not yes and not confirm(f"Download {_bytes(needed)} to {hub.hub_cache()}?"):
        print("Nothing was downloaded.", file=sys.stderr)
        return []
    return [_pull(item, revision) for item, (_, revision) in zip(found, repos, strict=True)]


def _pull(found: Listing, revision: str | None) -> Path:
    from macspec_models import hub

    line = Line(found.repo)
    try:
        return hub.pull(found.repo, revision=revision, progress=line, found=found)
    finally:
        line.clear()


def confirm(question: str) -> bool:
    """Ask on the terminal; only a clear yes is one. Raises `RequestError` where nobody can be asked."""
    if not _can_ask():
        raise RequestError(f"{question} Nobody can be asked here; add --yes.", param="yes")
    print(f"{question} [y/N] ", end="", flush=True, file=sys.stderr)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _can_ask() -> bool:
    """Whether a person reads what is printed and types the answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def _bytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


class Line:
    """One line of progress on a terminal: share, speed and time left."""

    def __init__(self, what: str) -> None:
        self.what, self.begun, self.first = what, time.monotonic(), -1
        self._shown, self._last = sys.stderr.isatty(), 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._shown or (now - self._last < 0.1 and done < total):
            return
        self._last = now
        sys.stderr.write("\r\x1b[2K" + self.text(stage, done, total, now)[:90])
        sys.stderr.flush()

    def text(self, stage: str, done: int, total: int, now: float) -> str:
        """The line's text; what an earlier download left does not count as speed."""
        if self.first < 0:
            self.first, self.begun = done, now
        share = f"{100 * done // total:3d} %" if total else ""
        speed = (done - self.first) / (now - self.begun) if now - self.begun > 0.5 else 0.0
        rest = ""
        if stage == "downloading" and speed > 0:
            left = (total - done) / speed
            rest = (
                f", {speed / 1e6:.1f} MB/s, {left / 60:.0f} min left"
                if left > 90
                else f", {speed / 1e6:.1f} MB/s, {left:.0f} s left"
            )
        return f"{self.what}: {stage} {share}{rest}"

    def clear(self) -> None:
        """Leave the line empty."""
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
