"""``macspec models``: the known pairs, and what of them is on this machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from macspec import download, quantize_command
from macspec.errors import RequestError
from macspec.machine import describe
from macspec_models import hub, registry
from macspec_models.registry import Pair, Source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    actions = parser.add_subparsers(
        dest="action", metavar="list | show | pull | rm | path | quantize-drafter", required=True
    )
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
    sub = actions.add_parser("quantize-drafter", help="write a smaller copy of a drafter and compare its acceptance")
    quantize_command.add_arguments(sub)


def run(options: argparse.Namespace) -> int:
    """Do what was asked; returns the exit code."""
    actions = {"list": _list, "show": _show, "pull": _pull, "rm": _remove, "path": _path}
    actions["quantize-drafter"] = quantize_command.run
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
    copies = {repo: hub.lm_studio_folder(repo) for repo, revision in sources if revision is None}
    wanted = [(repo, revision) for repo, revision in sources if copies.get(repo) is None]
    for repo, copy in copies.items():
        if copy is not None:
            print(f"{repo}: {copy}, from LM Studio; nothing to download")
    if not wanted:
        return 0
    folders = download.fetch(wanted, yes=options.yes)
    for (repo, _), folder in zip(wanted, folders, strict=False):
        print(f"{repo}: {folder}")
    return 0 if folders else 1


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
    if not options.yes and not download.confirm(f"Remove {', '.join(wanted)} ({size / 1e9:.2f} GB)?"):
        print("Nothing was removed.")
        return 1
    for repo in wanted:
        print(f"removed {repo}, {hub.remove(repo) / 1e9:.2f} GB")
    return 0


def _path(options: argparse.Namespace) -> int:
    folder: Path = hub.resolve(options.name, part="drafter" if options.drafter else "target")
    print(folder)
    return 0
