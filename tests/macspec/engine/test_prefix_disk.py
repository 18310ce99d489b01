"""The disk tier: entries survive the process, and nothing on the disk can hurt it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from macspec.engine.prefix_disk import DiskTier
from toy_chat import Chat, CountingContext, numbers

MIXED = ("full", "quantized", "window", "chunked", "recurrent", "list")


class StoredContext(CountingContext):
    """A context that can be written to a file."""

    def fork(self) -> StoredContext:
        return StoredContext(self.seen)

    def export(self) -> list:
        import mlx.core as mx

        return [mx.array(self.seen), None, len(self.seen)]

    def fill(self, parts: list, length: int) -> None:
        self.seen = parts[0].tolist()
        assert parts[1] is None and parts[2] == length


def chat_on(folder: Path, *, budget: int = 10**8, memory: int = 10**8, fingerprint: str = "m", context=StoredContext):
    chat = Chat(MIXED, memory, DiskTier(folder, budget, fingerprint))
    chat.prefixes.use_drafter(context)
    return chat


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_an_entry_survives_the_process(tmp_path: Path) -> None:
    prompt = numbers(40, 0)
    first = chat_on(tmp_path)
    first.ask(prompt, [1], boundary=25)
    first.prefixes.close()
    assert len(files(tmp_path)) == 1 and len(first.prefixes) == 0
    whole = chat_on(tmp_path).ask([*prompt, 2, 3], [1])
    assert whole.cached == 40 and whole.context is not None and -1 not in whole.context.seen
    marked = chat_on(tmp_path).ask([*prompt[:30], *numbers(20, 1)], [1])
    assert marked.cached == 25, "the mark at the boundary was stored too"


def test_a_context_that_cannot_be_stored_starts_empty(tmp_path: Path) -> None:
    first = chat_on(tmp_path, context=CountingContext)
    first.ask(numbers(40, 0), [1])
    first.prefixes.close()
    reuse = chat_on(tmp_path, context=CountingContext).ask([*numbers(40, 0), 2, 3], [1])
    assert reuse.cached == 40 and reuse.context is not None and reuse.context.seen[:40] == [-1] * 40


def test_what_is_evicted_from_memory_is_found_on_disk(tmp_path: Path) -> None:
    chat = chat_on(tmp_path)
    chat.ask(numbers(40, 0), [1])
    chat.prefixes.budget_bytes = int(1.5 * chat.prefixes.nbytes)
    chat.ask(numbers(40, 1), [1])
    assert len(files(tmp_path)) == 1
    assert chat.ask([*numbers(40, 0), 2, 3], [1]).cached == 40


def test_files_and_folder_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "prefixes"
    chat = chat_on(folder)
    chat.ask(numbers(40, 0), [1])
    chat.prefixes.close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in files(folder)] == [0o600]


def test_the_disk_budget_is_never_exceeded_and_the_newest_stay(tmp_path: Path) -> None:
    chat = chat_on(tmp_path)
    chat.ask(numbers(40, 0), [1])
    chat.prefixes.close()
    each = size(tmp_path)
    chat = chat_on(tmp_path, budget=3 * each + 40_000)
    for seed in range(1, 8):
        chat.ask(numbers(40, seed), [1])
        chat.prefixes.close()
        os.utime(max(files(tmp_path), key=lambda path: path.stat().st_ctime_ns), (seed, seed))
        assert size(tmp_path) <= 3 * each + 40_000
    assert chat_on(tmp_path).ask([*numbers(40, 7), 1], [1]).cached == 40
    assert chat_on(tmp_path).ask([*numbers(40, 1), 1], [1]).cached == 0
    chat_on(tmp_path, budget=each + 100)
    assert len(files(tmp_path)) <= 1, "a smaller budget applies to what is there already"
    tiny = chat_on(tmp_path / "tiny", budget=100)
    tiny.ask(numbers(40, 0), [1])
    tiny.prefixes.close()
    assert not files(tmp_path / "tiny")


def test_the_same_tokens_are_stored_once(tmp_path: Path) -> None:
    for _ in range(3):
        chat = Chat(MIXED, 10**8, DiskTier(tmp_path, 10**8, "m"))
        chat.ask(numbers(40, 0), [1])
        chat.prefixes.close()
    assert len(files(tmp_path)) == 1


def test_files_of_another_model_are_not_used(tmp_path: Path) -> None:
    chat = chat_on(tmp_path)
    chat.ask(numbers(40, 0), [1])
    chat.prefixes.close()
    assert chat_on(tmp_path, fingerprint="another").ask([*numbers(40, 0), 1], [1]).cached == 0
    assert len(files(tmp_path)) == 1


def test_a_file_cut_or_changed_anywhere_is_ignored_with_one_line(tmp_path: Path, caplog) -> None:
    chat = chat_on(tmp_path)
    chat.ask(numbers(40, 0), [1])
    chat.prefixes.close()
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    cuts = [0, 1, 7, 8, 9, 200, len(whole) - 1, *random.integers(0, len(whole), 15).tolist()]
    damaged = [whole[:cut] for cut in cuts]
    for at in random.integers(0, len(whole), 15).tolist():
        damaged.append(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
    damaged.append(b"\xff" * 64)
    damaged.append(whole + b"x")
    for content in damaged:
        path.write_bytes(content)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            reuse = chat_on(tmp_path).prefixes.take([*numbers(40, 0), 1])
        assert reuse.cached == 0 or content[len(content) - 1 :] == b"", f"{len(content)} bytes"
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) <= 1 and all("\n" not in line and "is ignored" in line for line in lines)
    path.write_bytes(whole)
    assert chat_on(tmp_path).prefixes.take([*numbers(40, 0), 1]).cached == 40


def test_foreign_files_are_left_alone_with_one_line(tmp_path: Path, caplog) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "prefix-0000000000000000-short.safetensors").write_bytes(b"x")
    with caplog.at_level(logging.WARNING):
        chat_on(tmp_path, budget=0)
    assert len(caplog.records) == 2
    assert (tmp_path / "notes.txt").read_text() == "mine" and len(list(tmp_path.iterdir())) == 2


def test_a_link_is_not_followed(tmp_path: Path, caplog) -> None:
    chat = chat_on(tmp_path / "real")
    chat.ask(numbers(40, 0), [1])
    chat.prefixes.close()
    (path,) = files(tmp_path / "real")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / path.name).symlink_to(path)
    assert chat_on(tmp_path / "other").prefixes.take([*numbers(40, 0), 1]).cached == 0
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(PermissionError, match="not a folder of yours"):
        DiskTier(tmp_path / "link", 10**6, "m")


def test_a_file_deleted_while_in_use_is_missed_with_one_line(tmp_path: Path, caplog) -> None:
    chat = chat_on(tmp_path)
    chat.ask(numbers(40, 0), [1])
    chat.prefixes.close()
    later = chat_on(tmp_path)
    files(tmp_path)[0].unlink()
    with caplog.at_level(logging.WARNING):
        assert later.ask([*numbers(40, 0), 1], [1]).cached == 0
    assert len(caplog.records) == 1


def test_a_full_disk_costs_one_line(tmp_path: Path, caplog, monkeypatch) -> None:
    def full(*arguments) -> None:
        raise OSError(28, "No space left on device")

    chat = chat_on(tmp_path)
    chat.ask(numbers(40, 0), [1])
    monkeypatch.setattr(os, "fsync", full)
    with caplog.at_level(logging.WARNING):
        chat.prefixes.close()
    assert len(caplog.records) == 1 and "No space left" in caplog.records[0].getMessage()
    assert not files(tmp_path)


KILLED = """
    import sys
    sys.path[:0] = {path!r}
    from pathlib import Path
    from test_prefix_disk import chat_on
    from toy_chat import numbers
    chat = chat_on(Path(sys.argv[1]))
    print("ready", flush=True)
    for seed in range(10_000):
        chat.ask(numbers(40, seed), [1])
        chat.prefixes.close()
"""


def test_killing_the_writer_leaves_a_usable_folder(tmp_path: Path, caplog) -> None:
    here = Path(__file__).parent
    code = textwrap.dedent(KILLED).format(path=[str(here), str(here.parents[1])])
    writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    while len(files(tmp_path)) < 3:
        assert writer.poll() is None
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    (tmp_path / f"partial-{writer.pid}.safetensors").write_bytes(b"half a file")
    with caplog.at_level(logging.WARNING):
        chat = chat_on(tmp_path)
        assert chat.ask([*numbers(40, 0), 1], [1]).cached == 40
        assert chat.ask([*numbers(40, 1), 1], [1]).cached == 40
    assert not caplog.records and not list(tmp_path.glob("partial-*"))
