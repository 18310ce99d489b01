"""Downloads from the Hugging Face hub, and what earlier ones left on this machine. No MLX here.

Only weights (safetensors), JSON, chat templates and tokenizer files are ever fetched. A repository's newest state
becomes visible to `local_folder` only after every file was checked; until then the previous one stays in use.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import hashlib
import importlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from macspec_models import registry
from macspec_models.disk import free_bytes
from macspec_models.errors import CheckpointError, DownloadError, ModelMissingError

#: Everything else in a repository (pickles, code, GGUF, pictures) is never asked for.
ALLOWED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.tiktoken", "merges.txt", "vocab.txt")
#: Kept free beside a download, for caches and the system.
MARGIN_BYTES = 1 << 30
KEPT = "What was fetched so far is kept and the next pull goes on from there."
LM_STUDIO = (".lmstudio/models", ".cache/lm-studio/models")

#: Called with a stage, bytes done and bytes in all.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as the hub lists it: its size, and a SHA-256 (large files) or a Git blob id."""

    name: str
    size: int
    sha256: str | None = None
    blob: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a repository at one commit that macspec would fetch."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def hub_cache() -> Path:
    """Hugging Face's cache folder, by its own environment variables."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    return Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()


def offline() -> bool:
    """Whether the user has forbidden the network."""
    return any(
        os.environ.get(n, "").lower() in ("1", "true", "yes", "on") for n in ("HF_HUB_OFFLINE", "MACSPEC_OFFLINE")
    )


def _endpoint() -> str | None:
    """A mirror of the hub named by the user; huggingface_hub itself reads it only when it is imported."""
    return os.environ.get("HF_ENDPOINT") or None


def resolve(
    name: str,
    *,
    part: str = "target",
    download: bool = False,
    progress: Progress | None = None,
    revision: str | None = None,
) -> Path:
    """The local folder of a registry name, a folder, or a hub id.

    Args:
        part: ``target`` or ``drafter``: which half of a registry pair is meant.
        download: fetch what is not here; else its absence is an error that says how to get it.
        revision: branch, tag or commit; None takes the pinned or the newest one.

    Raises:
        ModelError: nothing of that name, not here, or the download failed.
    """
    if (folder := _own_folder(name)) is not None:
        return folder
    source = _source(name, part)
    if source is None:
        return _embedded(part, progress)
    found = _local_repo(source.repo, revision or source.revision)
    if found is not None:
        return found
    if not download or offline():
        why = "and the network is switched off" if offline() else "yet"
        raise ModelMissingError(
            f"{name} ({source.repo}) is not on this machine {why}. Fetch it with: macspec models pull {name}"
        )
    return pull(source.repo, revision=revision or source.revision, progress=progress)


def local_folder(name: str, *, part: str = "target") -> Path | None:
    """The folder of a name when it is complete on this machine, without asking a network; None when it is not."""
    if (folder := _own_folder(name)) is not None:
        return folder
    source = _source(name, part)
    if source is None:
        return None
    return _local_repo(source.repo, source.revision)


def absent(name: str, *, part: str = "target") -> registry.Source | None:
    """Where a name would have to be downloaded from; None when it is on this machine.

    Raises:
        ModelMissingError: nothing of that name is known.
    """
    if _own_folder(name) is not None:
        return None
    source = _source(name, part)
    return None if source is None or _local_repo(source.repo, source.revision) is not None else source


#: How a name begins that can only be a path.
_PATHS = ("/", "./", "../", "~")


def _own_folder(name: str) -> Path | None:
    """The folder a name means; a known model's name means the model, whatever lies in the working directory."""
    folder = Path(name).expanduser()
    return folder if folder.is_dir() and (os.sep in name or registry.find(name) is None) else None


def _source(name: str, part: str) -> registry.Source | None:
    """Where a name points: None is what ships with macspec. Raises `ModelMissingError` for an unknown name."""
    pair = registry.pairs().get(name)
    if pair is not None:
        source = pair.target if part == "target" else pair.drafter
        return source if source.repo else None
    if name.startswith(_PATHS):
        raise ModelMissingError(
            f"There is no folder {registry.shown(name)}; check the path, or choose from: macspec models list"
        )
    if name.count("/") != 1:
        raise registry.unknown(name)
    registry.check_repo(name)
    return registry.Source(name, 0.0, "")


def _embedded(part: str, progress: Progress | None) -> Path:
    from macspec_models import embedded

    return embedded.target_folder(progress=progress) if part == "target" else embedded.drafter_folder()


def _local_repo(repo: str, revision: str | None) -> Path | None:
    base = hub_cache() / _folder_name(repo)
    snapshots = base / "snapshots"
    wanted = revision or "main"
    commit = wanted
    with contextlib.suppress(OSError, ValueError):
        commit = (base / "refs" / registry.check_revision(wanted)).read_text(encoding="ascii").strip()
    candidates = [snapshots / commit] if all(c.isalnum() for c in commit) else []
    for folder in candidates:
        if is_complete(folder, within=base):
            return folder
    return lm_studio_folder(repo) if revision is None else None


def lm_studio_folder(repo: str) -> Path | None:
    """LM Studio's copy of a repository; it does not say of which revision."""
    roots = (Path.home() / parent for parent in LM_STUDIO)
    return next((root / repo for root in roots if is_complete(root / registry.check_repo(repo), within=root)), None)


def is_complete(folder: Path, *, within: Path | None = None) -> bool:
    """Whether a folder holds a config and all the weights its index names, none of them leading out of ``within``."""
    try:
        config, shards = folder / "config.json", []
        index = folder / "model.safetensors.index.json"
        if not config.is_file():
            return False
        if index.is_file():
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            shards = [folder / registry.check_file(name) for name in names]
        else:
            shards = list(folder.glob("*.safetensors"))
        files = [config, *shards]
        if not shards or not all(file.is_file() and file.stat().st_size > 0 for file in files):
            return False
        root = (within or folder).resolve()
        return all(file.resolve().is_relative_to(root) for file in files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, registry.NameRefusedError):
        return False


def _folder_name(repo: str) -> str:
    return "models--" + registry.check_repo(repo).replace("/", "--")


def listing(repo: str, revision: str | None = None, *, endpoint: str | None = None) -> Listing:
    """What a download would fetch. Raises `DownloadError` or `ModelMissingError` with a sentence."""
    registry.check_repo(repo)
    revision = registry.check_revision(revision or "main")
    from huggingface_hub import HfApi

    _hush()
    with _sentences(repo):
        info = HfApi(endpoint=endpoint or _endpoint()).model_info(
            repo, revision=revision, files_metadata=True, timeout=30.0
        )
    commit = info.sha or ""
    if len(commit) != 40 or any(c not in "0123456789abcdef" for c in commit):
        raise DownloadError(f"The hub named no commit for {repo}; nothing was downloaded.")
    files = []
    for entry in info.siblings or []:
        name = registry.check_file(entry.rfilename)
        # Weights of other frameworks often lie in folders; models for mlx-lm lie flat.
        if "/" in name or not any(fnmatch.fnmatchcase(name, pattern) for pattern in ALLOWED):
            continue
        sha = entry.lfs.sha256 if entry.lfs is not None else None
        files.append(RemoteFile(name, int(entry.size or 0), sha, entry.blob_id))
    names = {file.name for file in files}
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        raise CheckpointError(f"{repo} has no config.json with safetensors weights; macspec reads nothing else.")
    return Listing(repo, commit, tuple(files))


def missing(found: Listing) -> int:
    """Bytes of a listing that are not in the cache yet."""
    snapshot = hub_cache() / _folder_name(found.repo) / "snapshots" / found.commit
    return sum(file.size for file in found.files if not _has_size(snapshot / file.name, file.size))


def pull(
    repo: str,
    *,
    revision: str | None = None,
    progress: Progress | None = None,
    endpoint: str | None = None,
    found: Listing | None = None,
) -> Path:
    """Download a repository into Hugging Face's cache, resuming what was begun; returns its folder.

    Every file is checked against the hub's hash. Only then does ``revision`` point to the new state; whatever fails
    before leaves the previous one in use.

    Raises:
        DownloadError: the network, the hub or the disk; the sentence says which, and what was kept.
    """
    if offline():
        raise DownloadError(
            f"The network is switched off (HF_HUB_OFFLINE or MACSPEC_OFFLINE), so {repo} cannot be fetched."
        )
    found = found or listing(repo, revision, endpoint=endpoint)
    report = progress or (lambda stage, done, total: None)
    check_disk(found)
    base = hub_cache() / _folder_name(repo)
    # The config comes last: a folder that has one had everything before it.
    ordered = sorted(found.files, key=lambda file: (file.name == "config.json", file.name))
    meter = _Meter(report, found.size)
    for file in ordered:
        path = _fetch(found, file, meter, endpoint)
        meter.finished(file.size)
        _check_hash(repo, file, path, base, report)
    folder = base / "snapshots" / found.commit
    if not is_complete(folder, within=base):
        raise CheckpointError(f"{repo} was downloaded but its index names weights that it does not have.")
    _point(base, revision or "main", found.commit)
    return folder


def check_disk(*found: Listing) -> None:
    """Refuse downloads that would together fill the disk."""
    needed, free = sum(map(missing, found)), free_bytes(hub_cache())
    if needed and free is not None and free < needed + MARGIN_BYTES:
        names = " and ".join(item.repo for item in found)
        raise DownloadError(
            f"{names} needs {_gb(needed)} and {_gb(MARGIN_BYTES)} to spare, but only {_gb(free)} are free "
            f"in {hub_cache()}. Free some space or set HF_HUB_CACHE to another disk."
        )


class _Meter:
    """Adds up bytes over files and tells the caller."""

    def __init__(self, report: Progress, total: int) -> None:
        self.report, self.total, self.done, self.current = report, total, 0, 0

    def advance(self, count: int) -> None:
        self.current += count
        self.report("downloading", min(self.done + self.current, self.total), self.total)

    def finished(self, size: int) -> None:
        self.done += size
        self.current = 0
        self.report("downloading", min(self.done, self.total), self.total)


def _fetch(found: Listing, file: RemoteFile, meter: _Meter, endpoint: str | None) -> Path:
    from huggingface_hub import hf_hub_download

    _hush()
    with _sentences(found.repo):
        path = hf_hub_download(
            found.repo,
            file.name,
            revision=found.commit,
            cache_dir=hub_cache(),
            endpoint=endpoint or _endpoint(),
            tqdm_class=_bar_class(meter),
        )
    return Path(path)


def _hush() -> None:
    """Have huggingface_hub ask for nothing but files, and leave the terminal to us."""
    constants: Any = importlib.import_module("huggingface_hub.constants")
    logging: Any = importlib.import_module("huggingface_hub.utils.logging")
    # Else every first request of a day also asks the hub which assistant may be running it.
    constants.HF_HUB_DISABLE_TELEMETRY = True
    # Its warnings about resuming would write into our line of progress.
    logging.set_verbosity_error()


def _bar_class(meter: _Meter) -> Any:
    """A silent progress bar that passes its counts on."""
    tqdm: Any = importlib.import_module("tqdm.auto").tqdm

    class Bar(tqdm):  # type: ignore[misc]  # tqdm ships no types
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            initial = options.get("initial") or 0
            super().__init__(*args, **{**options, "disable": True})
            if initial:
                meter.advance(int(initial))

        def update(self, n: float | None = 1) -> bool | None:
            meter.advance(int(n or 0))
            return None

    return Bar


def _check_hash(repo: str, file: RemoteFile, path: Path, base: Path, report: Progress) -> None:
    blob = path.resolve()
    if not blob.is_relative_to(base.resolve()):
        raise DownloadError(f"{path} leads out of the cache; remove it and pull {repo} again.")
    marker = base / ".macspec" / (file.sha256 or file.blob or "none")
    status = blob.stat()
    stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
    if _read(marker) == stamp:
        return
    if status.st_size != file.size or not _right(file, blob, report):
        path.unlink(missing_ok=True)
        blob.unlink(missing_ok=True)
        raise DownloadError(f"{file.name} of {repo} arrived damaged and was removed; pull it again to fetch it anew.")
    with contextlib.suppress(OSError):
        marker.parent.mkdir(exist_ok=True)
        _write(marker, stamp)


def _right(file: RemoteFile, path: Path, report: Progress) -> bool:
    if file.sha256 is not None:
        digest = hashlib.sha256()
        expected = file.sha256
    elif file.blob is not None:
        digest = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
        expected = file.blob
    else:
        return True
    done = 0
    with path.open("rb") as stream:
        while piece := stream.read(8 << 20):
            digest.update(piece)
            done += len(piece)
            report(f"checking {file.name}", done, file.size)
    return digest.hexdigest() == expected


def _point(base: Path, revision: str, commit: str) -> None:
    """Make a branch or tag mean a commit, as Hugging Face's own tools do."""
    if revision == commit:
        return
    ref = base / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    _write(ref, commit)


def _write(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as stream:
            stream.write(text)
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None


def _refusal(repo: str, code: int) -> DownloadError:
    if code == 429:
        return DownloadError(f"The hub limits our requests for {repo} (429). Wait some minutes. {KEPT}")
    if code in (401, 403):
        return DownloadError(f"The hub refused us {repo} ({code}). Sign in with: hf auth login")
    return DownloadError(f"The hub answered {code} for {repo}. Try again later. {KEPT}")


@contextlib.contextmanager
def _sentences(repo: str) -> Iterator[None]:
    """Turn what huggingface_hub and the system raise into sentences."""
    import httpx2
    from huggingface_hub import errors as hub

    try:
        yield
    except hub.GatedRepoError as error:
        raise DownloadError(
            f"{repo} is gated: accept its terms at huggingface.co/{repo}, then sign in with: hf auth login"
        ) from error
    except (hub.RepositoryNotFoundError, hub.RevisionNotFoundError, hub.RemoteEntryNotFoundError) as error:
        raise ModelMissingError(
            f"The hub has no {repo} (or not that revision), or it is private; check the name, or sign in with: "
            "hf auth login"
        ) from error
    except hub.HfHubHTTPError as error:
        raise _refusal(repo, error.response.status_code) from error
    except hub.LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, hub.HfHubHTTPError):
            raise _refusal(repo, error.__cause__.response.status_code) from error
        if isinstance(error.__cause__, hub.FileMetadataError):
            raise DownloadError(f"What answered for {repo} is no hub server; check HF_ENDPOINT and proxies.") from error
        raise DownloadError(f"The hub cannot be reached for {repo}; check the network. {KEPT}") from error
    except (httpx2.HTTPError, TimeoutError) as error:
        raise DownloadError(
            f"The connection to the hub broke off for {repo} ({type(error).__name__}). {KEPT}"
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(f"The disk is full; {repo} is incomplete. Free some space and pull again.") from error
        if "Consistency check failed" in str(error):
            raise DownloadError(f"A file of {repo} arrived shorter or longer than announced. {KEPT}") from error
        raise DownloadError(f"{repo} could not be stored: {error}.") from error


def downloaded() -> dict[str, int]:
    """Repositories in Hugging Face's cache that are models, with their bytes."""
    found = {}
    for folder in sorted(hub_cache().glob("models--*--*")) if hub_cache().is_dir() else []:
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        if folder.is_dir() and not folder.is_symlink() and (folder / "snapshots").is_dir():
            found[repo] = sum(f.lstat().st_size for f in (folder / "blobs").glob("*") if not f.is_symlink())
    return found


def remove(repo: str) -> int:
    """Delete a repository from Hugging Face's cache; returns the bytes it held. Links are never followed."""
    base = hub_cache() / _folder_name(repo)
    if base.is_symlink() or not base.is_dir():
        raise ModelMissingError(f"{repo} is not in {hub_cache()}; nothing was removed.")
    freed = sum(f.lstat().st_size for f in (base / "blobs").glob("*"))
    # First out of sight in one step, so that nobody meets half a model.
    aside = base.with_name(f".removing-{base.name}-{time.time_ns()}")
    try:
        os.replace(base, aside)
        shutil.rmtree(aside)
    except OSError as error:
        raise DownloadError(f"{repo} could not be removed completely: {error}.") from error
    return freed


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
