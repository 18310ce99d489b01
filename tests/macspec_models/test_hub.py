from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_hub import FakeHub, Handler, serving
from macspec_models import hub as hubs
from macspec_models.errors import CheckpointError, DownloadError, ModelError, ModelMissingError

REPO = "someone/tiny"
WEIGHTS = random.Random(1).randbytes(300_000)
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b'{"version": "1.0"}' * 50,
    "chat_template.jinja": b"{{ messages }}",
    "pytorch_model.bin": b"a pickle",
    "modeling.py": b"import os",
    "model.gguf": b"GGUF",
    "onnx/model.json": b"{}",
    "README.md": b"hello",
}
WANTED = {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in ("HF_HUB_OFFLINE", "MACSPEC_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # Ten megabytes in reality; the files here are smaller.
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 2048)
    # Seconds of waiting between attempts say nothing here.
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with serving() as server:
        server.add(REPO, FILES)
        yield server


def pull(hub: FakeHub, **options: object) -> Path:
    return hubs.pull(REPO, endpoint=hub.url, **options)  # type: ignore[arg-type]  # keyword arguments of pull


def test_only_safe_files_are_fetched_and_checked(hub: FakeHub) -> None:
    seen: list[tuple[str, int, int]] = []
    folder = pull(hub, progress=lambda *news: seen.append(news))
    assert {p.name for p in folder.iterdir()} == WANTED
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert all(path.startswith((f"/api/models/{REPO}", f"/{REPO}", f"/cdn/{REPO}")) for _, path, _ in hub.requests)
    assert not any("pytorch" in path or ".py" in path or "gguf" in path for _, path, _ in hub.requests)
    downloading = [(done, total) for stage, done, total in seen if stage == "downloading"]
    assert downloading[-1] == (sum(len(FILES[n]) for n in WANTED),) * 2
    assert all(0 <= done <= total for done, total in downloading)
    assert hubs.local_folder(REPO) == folder
    assert hubs.resolve(REPO) == folder
    assert hubs.downloaded() == {REPO: sum(len(FILES[n]) for n in WANTED)}


def test_the_config_comes_last(hub: FakeHub) -> None:
    pull(hub)
    fetched = [path.rsplit("/", 1)[-1] for command, path, _ in hub.requests if command == "GET" and "/resolve/" in path]
    assert fetched[-1] == "config.json"


def test_what_is_here_needs_no_network(hub: FakeHub) -> None:
    pull(hub)
    hub.requests.clear()
    assert hubs.local_folder(REPO) is not None
    assert hubs.resolve(REPO, download=True) == hubs.local_folder(REPO)
    assert hub.requests == []


def test_what_is_not_here_says_how_to_get_it(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelMissingError, match="macspec models pull someone/tiny"):
        hubs.resolve(REPO)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelMissingError, match="switched off"):
        hubs.resolve(REPO, download=True)
    with pytest.raises(DownloadError, match="switched off"):
        pull(hub)
    assert hub.requests == []


class Cut:
    """Sends only part of the weights and closes the connection, so many times."""

    def __init__(self, times: int, seed: int = 0) -> None:
        self.times, self.rng = times, random.Random(seed)

    def __call__(self, handler: Handler, path: str) -> bool:
        if not path.startswith("/cdn/") or handler.command == "HEAD" or self.times <= 0:
            return False
        self.times -= 1
        wanted = handler.headers.get("Range", "bytes=0-")
        start = int(wanted.removeprefix("bytes=").split("-")[0])
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(WEIGHTS) - 1}/{len(WEIGHTS)}")
        handler.send_header("Content-Length", str(len(WEIGHTS) - start))
        handler.end_headers()
        handler.wfile.write(WEIGHTS[start : start + self.rng.randrange(0, 9000)])
        handler.close_connection = True
        return True


def test_interrupted_fifty_times_ends_complete_or_as_before(hub: FakeHub) -> None:
    """Each attempt breaks off at a random byte; in between there is the previous state, in the end the new one."""
    old = hub.add(REPO, {**FILES, "model.safetensors": b"old weights"})
    before = pull(hub)
    new = hub.add(REPO, FILES)
    # The client itself goes on as long as bytes arrive; some attempts must give up.
    hub.rule = Cut(50, seed=3)
    for _ in range(60):
        try:
            folder = pull(hub)
            break
        except ModelError:
            assert hubs.local_folder(REPO) == before
    else:
        pytest.fail("never complete")
    assert folder.name == new and before.name == old
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert hubs.local_folder(REPO) == folder


@pytest.mark.parametrize("seed", range(50))
def test_killed_at_a_random_byte(hub: FakeHub, seed: int) -> None:
    """The process ends in the middle (nothing of ours runs afterwards); the next pull completes it."""
    rng = random.Random(seed)

    class Killed(BaseException):
        pass

    limit = rng.randrange(sum(len(FILES[name]) for name in WANTED))

    def kill(stage: str, done: int, total: int) -> None:
        if stage == "downloading" and done > limit:
            raise Killed

    with pytest.raises(Killed):
        pull(hub, progress=kill)
    assert hubs.local_folder(REPO) is None
    assert (pull(hub) / "model.safetensors").read_bytes() == WEIGHTS


def test_resuming_asks_only_for_the_rest(hub: FakeHub) -> None:
    hub.rule = Cut(1)
    pull(hub)
    ranges = [wanted for command, path, wanted in hub.requests if path.startswith("/cdn/") and command == "GET"]
    assert ranges[0] == "" and ranges[1].startswith("bytes=")


def test_damaged_on_the_way_is_removed(hub: FakeHub) -> None:
    def flip(handler: Handler, path: str) -> bool:
        if path.startswith("/cdn/") and handler.command == "GET":
            handler.content(b"X" + WEIGHTS[1:], {}, True)
            return True
        return False

    hub.rule = flip
    with pytest.raises(DownloadError, match="arrived damaged and was removed"):
        pull(hub)
    assert hubs.local_folder(REPO) is None
    hub.rule = lambda handler, path: False
    assert (pull(hub) / "model.safetensors").read_bytes() == WEIGHTS


def answer(code: int, headers: dict[str, str] | None = None, only: str = "") -> object:
    def rule(handler: Handler, path: str) -> bool:
        if only in path:
            handler.reply(code, b"{}", headers)
            return True
        return False

    return rule


@pytest.mark.parametrize(
    ("code", "headers", "sentence"),
    [
        (401, {"X-Error-Code": "GatedRepo"}, "is gated: accept its terms"),
        (403, {"X-Error-Code": "GatedRepo"}, "is gated: accept its terms"),
        (401, {"X-Error-Code": "RepoNotFound"}, "has no someone/tiny"),
        (404, {"X-Error-Code": "RepoNotFound"}, "has no someone/tiny"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "has no someone/tiny"),
        (429, {"Retry-After": "0"}, "limits our requests"),
        (500, {}, "answered 500"),
        (503, {}, "answered 503"),
    ],
)
def test_refusals_become_sentences(hub: FakeHub, code: int, headers: dict[str, str], sentence: str) -> None:
    hub.rule = answer(code, headers)  # type: ignore[assignment]
    with pytest.raises(ModelError, match=sentence):
        pull(hub)
    hub.rule = answer(code, headers, only="/resolve/")  # type: ignore[assignment]
    with pytest.raises(ModelError):
        pull(hub)
    assert hubs.local_folder(REPO) is None


def test_a_hub_that_is_not_there(hub: FakeHub) -> None:
    with pytest.raises(DownloadError, match="broke off|cannot be reached"):
        hubs.pull(REPO, endpoint="http://127.0.0.1:9")


def test_a_listing_of_rubbish_is_refused(hub: FakeHub) -> None:
    hub.commits[REPO] = "../../etc"
    with pytest.raises(DownloadError, match="named no commit"):
        pull(hub)


@pytest.mark.parametrize(
    "name", ["../evil.json", "/etc/evil.json", "a\\b.json", "c\u043enfig.json", "x\0.json", ".git/config.json"]
)
def test_names_that_lead_elsewhere_stop_the_download(hub: FakeHub, name: str) -> None:
    hub.listed = [{"rfilename": name, "size": 2, "blobId": "0" * 40}]
    with pytest.raises(ModelError, match="refused"):
        pull(hub)
    assert not any("/resolve/" in path for _, path, _ in hub.requests)


@pytest.mark.parametrize("repo", ["../x", "a/../b", "a/b/c", "mlx-c\u043emmunity/x"])
def test_bad_repository_ids_ask_nobody(hub: FakeHub, repo: str) -> None:
    with pytest.raises(ModelError):
        hubs.pull(repo, endpoint=hub.url)
    assert hub.requests == []


def test_repositories_without_safetensors_are_refused(hub: FakeHub) -> None:
    hub.add(REPO, {"config.json": b"{}", "pytorch_model.bin": b"x"})
    with pytest.raises(CheckpointError, match="reads nothing else"):
        pull(hub)


def test_missing_shards_are_noticed(hub: FakeHub) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    files = {
        "config.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-00001-of-00002.safetensors": b"one",
    }
    hub.add(REPO, files)
    with pytest.raises(CheckpointError, match="does not have"):
        pull(hub)
    assert hubs.local_folder(REPO) is None
    hub.add(REPO, {**files, "model-00002-of-00002.safetensors": b"two"})
    assert hubs.local_folder(REPO) is None
    assert pull(hub) == hubs.local_folder(REPO)


def test_a_full_disk_is_refused_before_anything_is_fetched(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    with pytest.raises(DownloadError, match="only 1 MB are free"):
        pull(hub)
    assert not any("/resolve/" in path for _, path, _ in hub.requests)


def test_a_link_out_of_the_cache_is_not_used(hub: FakeHub, tmp_path: Path) -> None:
    folder = pull(hub)
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes(WEIGHTS)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(outside)
    assert hubs.local_folder(REPO) is None


def test_lm_studio_copies_are_found(hub: FakeHub) -> None:
    folder = Path.home() / ".lmstudio/models" / REPO
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert hubs.local_folder(REPO) is None
    (folder / "model.safetensors").write_bytes(b"x")
    assert hubs.local_folder(REPO) == folder


def test_folders_and_the_embedded_pair(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hubs.resolve(str(tmp_path)) == tmp_path
    assert hubs.resolve("smollm2-135m", part="drafter").name == "drafter"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3-8b").mkdir()
    # A known name is not shadowed by a folder that happens to lie here.
    with pytest.raises(ModelMissingError, match="models pull qwen3-8b"):
        hubs.resolve("qwen3-8b")
    assert hubs.resolve("./qwen3-8b") == Path("qwen3-8b")
    with pytest.raises(ModelMissingError, match="Did you mean"):
        hubs.resolve("qwen3-8bb")


def test_remove(hub: FakeHub, tmp_path: Path) -> None:
    folder = pull(hub)
    assert hubs.remove(REPO) == sum(len(FILES[name]) for name in WANTED)
    assert not folder.exists() and hubs.downloaded() == {}
    with pytest.raises(ModelMissingError):
        hubs.remove(REPO)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    (hubs.hub_cache() / "models--a--b").symlink_to(precious)
    with pytest.raises(ModelMissingError):
        hubs.remove("a/b")
    assert (precious / "file").exists()


def test_pinned_revision_is_asked_for(hub: FakeHub) -> None:
    commit = hub.commits[REPO]
    assert pull(hub, revision=commit).name == commit
    with pytest.raises(ModelMissingError):
        pull(hub, revision="no-such-branch")
