"""``macspec models``: the known pairs, and what of them is on this machine."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from macspec.errors import RequestError
from macspec.machine import describe
from macspec_models import hub, registry
from macspec_models.registry import Pair, Source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    actions = parser.add_subparsers(dest="action", metavar="list | show | pull | rm | path", required=True)
    sub = actions.add_parser("list", help="known pairs and what is downloaded")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub = actions.add_parser("show", help="everything known about a model")
    sub.add_argument("name", help="registry name or hub id")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub = actions.add_parser("pull", help="download a pair, or one repository")
    sub.add_argument("name", help="registry name or hub id")
    sub.add_argument("--revision", metavar="REV", help="branch, tag or commit of a hub id")
    sub.add_argument("--yes", action="store_true", help="do not ask before downloading")
    sub.add_argument("--offline", action="store_true", help="only say whether it is here")
    sub = actions.add_parser("rm", help="remove a pair or a repository from the cache")
    sub.add_argument("name", help="registry name or hub id")
    sub.add_argument("--yes", action="store_true", help="do not ask")
    sub = actions.add_parser("path", help="print the folder of a model")
    sub.add_argument("name", help="registry name, folder or hub id")
    sub.add_argument("--drafter", action="store_true", help="of its drafter instead")


def run(options: argparse.Namespace) -> int:
    """Do what was asked; returns the exit code."""
    actions = {"list": _list, "show": _show, "pull": _pull, "rm": _remove, "path": _path}
    return actions[options.action](options)


def _list(options: argparse.Namespace) -> int:
    memory = describe().memory_bytes
    best = registry.best_for(memory) if memory else None
    rows = [_values(pair) for pair in registry.pairs().values()]
    known = {repo.lower() for pair in registry.pairs().values() for repo in (pair.target.repo, pair.drafter.repo)}
    others = {repo: size for repo, size in hub.downloaded().items() if repo.lower() not in known}
    if options.json:
        print(json.dumps({"pairs": rows, "others": others, "best_here": best.name if best else None}, indent=1))
        return 0
    print(f"{'name':<20} {'drafter':<8} {'size':>8} {'memory':>7} {'thinks':<6} {'status':<17} here")
    for row in rows:
        mark = {"target+drafter": "yes", "": "no"}.get(row["here"], row["here"])
        print(
            f"{row['name']:<20} {row['drafter']['kind']:<8} {row['size_gb']:>5.1f} GB {row['memory_gb']:>4} GB "
            f"{'yes' if row['thinking'] else 'no':<6} {row['status']:<17} {mark}"
        )
    for repo, size in others.items():
        print(f"{repo} ({size / 1e9:.1f} GB) is in the Hugging Face cache and not a known pair")
    if best is not None:
        print(f"Best fit for this machine's memory: {best.name}")
    return 0


def _show(options: argparse.Namespace) -> int:
    pair = registry.find(options.name)
    if pair is None:
        repo = registry.check_repo(options.name) if options.name.count("/") == 1 else None
        if repo is None:
            raise registry.unknown(options.name)
        folder = hub.local_folder(repo)
        values: dict[str, Any] = {"repo": repo, "path": str(folder) if folder else None}
        if options.json:
            print(json.dumps(values, indent=1))
        else:
            print(f"{repo}: {folder or 'not on this machine'}")
            print(registry.no_drafter(repo))
        return 0
    values = _values(pair)
    if options.json:
        print(json.dumps(values, indent=1))
        return 0
    print(f"{pair.title} ({pair.name}): {pair.status}")
    if pair.figure:
        print(f"  {pair.figure}")
    for part, source in (("target", pair.target), ("drafter", pair.drafter)):
        detail = f", {source.kind}, blocks of {source.block}" if source.kind else ""
        print(f"  {part:<8}{source.repo or 'ships with macspec'}{detail}")
        print(f"          {source.size_gb:g} GB, licence: {source.licence}, revision: {source.revision or 'newest'}")
        print(f"          {values[part]['path'] or 'not on this machine'}")
    print(f"  needs a machine of {pair.memory_gb:g} GB; {'can' if pair.thinking else 'does not'} think first")
    return 0


def _values(pair: Pair) -> dict[str, Any]:
    paths = {part: hub.local_folder(pair.name, part=part) for part in ("target", "drafter")}

    def part(name: str, source: Source) -> dict[str, Any]:
        return {
            "repo": source.repo or None,
            "revision": source.revision,
            "size_gb": source.size_gb,
            "licence": source.licence,
            "path": str(paths[name]) if paths[name] else None,
            **({"kind": source.kind, "block": source.block} if source.kind else {}),
        }

    here = "+".join(name for name in ("target", "drafter") if paths[name] or not pair.target.repo)
    return {
        "name": pair.name,
        "title": pair.title,
        "target": part("target", pair.target),
        "drafter": part("drafter", pair.drafter),
        "size_gb": round(pair.size_gb, 2),
        "memory_gb": pair.memory_gb,
        "thinking": pair.thinking,
        "status": pair.status,
        "figure": pair.figure,
        "here": here,
    }


def _sources(name: str) -> list[tuple[str, str | None]]:
    """Repositories and revisions behind a name."""
    pair = registry.pairs().get(name)
    if pair is not None:
        return [(s.repo, s.revision) for s in (pair.target, pair.drafter) if s.repo]
    if name.count("/") != 1:
        raise registry.unknown(name)
    return [(registry.check_repo(name), None)]


def _pull(options: argparse.Namespace) -> int:
    sources = _sources(options.name)
    if not sources:
        print(f"{options.name} ships with macspec; nothing to download.")
        return 0
    if options.revision is not None:
        if options.name in registry.pairs():
            raise RequestError("--revision is for one repository; a known pair has its own.", param="revision")
        sources = [(sources[0][0], registry.check_revision(options.revision))]
    if options.offline or hub.offline():
        return _here(options.name, sources)
    found = [hub.listing(repo, revision) for repo, revision in sources]
    needed = sum(hub.missing(item) for item in found)
    for item in found:
        print(f"{item.repo}@{item.commit[:12]}: {item.size / 1e9:.2f} GB, {hub.missing(item) / 1e9:.2f} GB to download")
        hub.check_disk(item)
    if needed and not options.yes and not _confirm(f"Download {needed / 1e9:.2f} GB to {hub.hub_cache()}?"):
        print("Nothing was downloaded.")
        return 1
    for item, (repo, revision) in zip(found, sources, strict=True):
        with_line = Line(repo)
        try:
            folder = hub.pull(repo, revision=revision, progress=with_line, found=item)
        finally:
            with_line.clear()
        print(f"{repo}: {folder}")
    return 0


def _here(name: str, sources: list[tuple[str, str | None]]) -> int:
    missing = False
    for repo, _ in sources:
        folder = hub.local_folder(repo)
        print(f"{repo}: {folder or 'not on this machine'}")
        missing = missing or folder is None
    if missing:
        print(f"The network is switched off. Without --offline: macspec models pull {name}")
    return 1 if missing else 0


def _remove(options: argparse.Namespace) -> int:
    sources = _sources(options.name)
    if not sources:
        raise RequestError(f"{options.name} ships with macspec and cannot be removed.", param="name")
    present = hub.downloaded()
    wanted = [repo for repo, _ in sources if repo in present]
    if not wanted:
        print(f"Nothing of {options.name} is in {hub.hub_cache()}.")
        return 1
    size = sum(present[repo] for repo in wanted)
    if not options.yes and not _confirm(f"Remove {', '.join(wanted)} ({size / 1e9:.2f} GB)?"):
        print("Nothing was removed.")
        return 1
    for repo in wanted:
        print(f"removed {repo}, {hub.remove(repo) / 1e9:.2f} GB")
    return 0


def _path(options: argparse.Namespace) -> int:
    folder: Path = hub.resolve(options.name, part="drafter" if options.drafter else "target")
    print(folder)
    return 0


def _confirm(question: str) -> bool:
    if not sys.stdin.isatty():
        raise RequestError(f"{question} Nobody can be asked here; add --yes.", param="yes")
    print(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


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
