"""What loading a model would have to download first, and that download, beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from macspec.errors import MacspecError
from macspec.worker.client import ProgressCallback
from macspec.worker.protocol import LoadProgress
from macspec_tui import figures

if TYPE_CHECKING:
    from macspec_models.hub import Listing

T = TypeVar("T")


class DownloadProblem(MacspecError):
    """A model is not known, cannot be downloaded, or its download was stopped."""

    exit_code = 1
    code = "download_failed"


class Download:
    """The parts that are missing for a model: ``(listing, revision)``, target first."""

    def __init__(self, parts: Sequence[tuple[Listing, str | None]]) -> None:
        self._parts = parts
        self._stopped = threading.Event()

    def question(self) -> str:
        """What would be downloaded, how much and to where."""
        from macspec_models import hub

        lines = [f"{part.repo}  {figures.size(hub.missing(part))}" for part, _ in self._parts]
        whole = sum(hub.missing(part) for part, _ in self._parts)
        return "\n".join(["Not on this machine yet:", *lines, f"Download {figures.size(whole)} to {hub.hub_cache()}?"])

    def stop(self) -> None:
        """End soon; what has arrived is kept for the next try."""
        self._stopped.set()

    async def run(self, progress: ProgressCallback) -> None:
        """Download everything. Raises `DownloadProblem` with the reason when that is not possible."""
        loop = asyncio.get_running_loop()

        def pull() -> None:
            from macspec_models import hub

            hub.check_disk(*(part for part, _ in self._parts))
            for part, revision in self._parts:

                def report(stage: str, done: int, total: int, repo: str = part.repo) -> None:
                    if self._stopped.is_set():
                        raise DownloadProblem("The download was stopped. What has arrived is kept.")
                    loop.call_soon_threadsafe(progress, LoadProgress(stage, done, total, f"of {repo}"))

                hub.pull(part.repo, revision=revision, progress=report, found=part)

        await _beside(pull)


async def needed(model: str, drafter: str | None) -> Download | None:
    """What is missing for this model, its own drafter included; None when nothing is or the network is off.

    Raises `DownloadProblem` when there is no such model or the hub cannot be asked.
    """

    def look() -> Download | None:
        from macspec_models import hub, registry

        target = hub.absent(model)
        pair = registry.find(model)
        own = hub.absent(pair.name, part="drafter") if pair is not None and drafter is None else None
        name, _ = registry.split_drafter(drafter)
        if name not in (None, "none", "lookup"):
            own = hub.absent(name, part="drafter")
        sources = [source for source in (target, own) if source is not None]
        if not sources or hub.offline():
            return None
        parts = [(hub.listing(source.repo, source.revision), source.revision) for source in sources]
        return Download(parts) if any(hub.missing(part) for part, _ in parts) else None

    return await _beside(look)


async def _beside(work: Callable[[], T]) -> T:
    from macspec_models.errors import ModelError

    try:
        return await asyncio.to_thread(work)
    except ModelError as error:
        raise DownloadProblem(error.message) from error
