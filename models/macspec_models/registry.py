"""The known pairs of target and drafter, and what a name means. No MLX here."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from macspec_models.errors import ModelError, ModelMissingError

FILE = Path(__file__).with_name("registry.toml")
EMBEDDED = "smollm2-135m"
KINDS = ("dflash", "dflash2", "dspark", "domino")
STATUSES = ("verified here", "published figure", "untested")
#: The hub's own rule, ASCII only, so that no letter can look like another one.
_REPO = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9])?", re.ASCII)
#: Parts of a repository's name that say how it is packed, not what it is.
_PACKAGING = re.compile(r"-(?:instruct|it|chat|mlx|bf16|fp16|qat|dwq|[2-8]bit|mxfp4|q[48])(?=-|$)")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,127}", re.ASCII)


class NameRefusedError(ModelError):
    """A name or path that could reach outside the model folders, or that is not what it looks like."""


@dataclass(frozen=True, slots=True)
class Source:
    """A repository on the hub; ``repo`` is empty for what ships with macspec."""

    repo: str
    size_gb: float
    licence: str
    revision: str | None = None
    kind: str = ""
    block: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """A target with the drafter made for it."""

    name: str
    title: str
    target: Source
    drafter: Source
    memory_gb: float
    thinking: bool
    status: str
    figure: str = ""
    #: Offered first on a machine of at least this memory.
    suggested: bool = False

    @property
    def size_gb(self) -> float:
        """Both downloads together."""
        return self.target.size_gb + self.drafter.size_gb


@functools.cache
def pairs() -> dict[str, Pair]:
    """Every known pair by name, the embedded one first."""
    raw = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {name: _pair(name, values) for name, values in raw.items()}


def _pair(name: str, values: dict[str, Any]) -> Pair:
    fields = dict(values)
    return Pair(name=name, target=Source(**fields.pop("target")), drafter=Source(**fields.pop("drafter")), **fields)


def find(name: str) -> Pair | None:
    """The pair of a name, or of its target's repository; None when unknown."""
    known = pairs()
    if name in known:
        return known[name]
    wanted = name.lower()
    return next((p for p in known.values() if p.target.repo and p.target.repo.lower() == wanted), None)


def drafters_for(repo: str) -> list[Pair]:
    """Pairs whose target is this repository, best known first."""
    found = [p for p in pairs().values() if p.target.repo and p.target.repo.lower() == repo.lower()]
    return sorted(found, key=lambda p: STATUSES.index(p.status))


def split_drafter(name: str | None) -> tuple[str | None, bool]:
    """A drafter's name without ``+lookup``, and whether that was there; ``+lookup`` alone names the model's own."""
    if name is None or not name.endswith("+lookup"):
        return name, False
    return name.removesuffix("+lookup") or None, True


def folder_name(folder: Path) -> str:
    """What to give as a name for a folder, so that no known model of that name is meant instead."""
    return str(folder) if folder.is_absolute() else f"./{folder}"


def best_for(memory_bytes: int) -> Pair:
    """The suggested pair for a machine of this memory; the embedded one when nothing larger fits."""
    # A Mac sold with 8 GB reports 8 GiB; a Linux machine a little less than its label.
    fitting = [p for p in pairs().values() if p.suggested and p.memory_gb * 2**30 <= memory_bytes * 1.05]
    return max(fitting, key=lambda p: p.memory_gb, default=pairs()[EMBEDDED])


def nearest(name: str, count: int = 3) -> list[str]:
    """Known names that look like ``name``."""
    by_last = {p.target.repo.rsplit("/", 1)[-1].lower(): p.name for p in pairs().values() if p.target.repo}
    by_last.update({n.lower(): n for n in pairs()})
    wanted = _PACKAGING.sub("", name.rsplit("/", 1)[-1].lower())
    close = difflib.get_close_matches(wanted, by_last, n=count * 2, cutoff=0.5)
    return list(dict.fromkeys(by_last[match] for match in close))[:count]


def check_repo(repo: str) -> str:
    """A repository id ``owner/name`` of plain letters; raises `NameRefusedError` for anything else."""
    parts = repo.split("/")
    plain = len(parts) == 2 and all(_REPO.fullmatch(part) for part in parts)
    if not plain or ".." in repo or "--" in repo or len(repo) > 96 or repo.endswith(".git"):
        raise NameRefusedError(f"{shown(repo)} is not a repository id; write owner/name in plain letters and digits.")
    return repo


def check_revision(revision: str) -> str:
    """A branch, tag or commit without tricks."""
    if not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision:
        raise NameRefusedError(f"{shown(revision)} is not a revision; write a branch, a tag or a commit.")
    return revision


def check_file(name: str) -> str:
    """A file name of a repository's listing that stays inside its folder."""
    parts = name.split("/")
    plain = all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+=@ -]*", part, re.ASCII) for part in parts)
    if not plain or len(name) > 255 or any(set(part) <= {"."} or part.endswith((".", " ")) for part in parts):
        raise NameRefusedError(f"The repository lists a file called {shown(name)}, which is refused.")
    return name


def unknown(name: str) -> ModelMissingError:
    """The error for a name that means nothing, with the nearest names."""
    close = nearest(name)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return ModelMissingError(
        f"There is no model {shown(name)}: it is neither a known name, nor a folder here, nor a hub id such as "
        f"owner/name.{hint} macspec models list shows the known ones."
    )


def no_drafter(target: str) -> str:
    """Sentence for a target without a known drafter: the nearest pairs, and what works with any model."""
    close = nearest(target)
    near = f" The nearest pairs known are {', '.join(close)}." if close else ""
    return f"No drafter is known for {shown(target)}.{near} Prompt-lookup works with any model: --drafter lookup"


def shown(name: str) -> str:
    """A name as it may be printed: quoted, letters of other scripts and control characters escaped."""
    normal = unicodedata.normalize("NFC", name)[:120]
    return ascii(normal)
