"""``macspec chat`` as a program."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from macspec.errors import RequestError
from macspec.worker.scripted import Reply, ScriptedClient
from macspec_tui import command
from macspec_tui.conversation import Message
from macspec_tui.store import SessionStore


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The person's data folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("macspec_tui.files.data_folder", lambda: tmp_path / "macspec")
    monkeypatch.setattr("macspec_tui.store.data_folder", lambda: tmp_path / "macspec")
    return tmp_path / "macspec"


def _parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(list(words))


def _pipe(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(text), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stdin)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> ScriptedClient:
    made = ScriptedClient(Reply(text="Rain taps."))
    monkeypatch.setattr(command, "_client", lambda args: made)
    return made


def test_a_pipe_gets_just_the_answer(
    data: Path, client: ScriptedClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pipe(monkeypatch, b"Write a haiku\nabout rain\n")
    assert command.run(_parse()) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("Rain taps.\n", "")
    assert client.requests[0].messages == ({"role": "user", "content": "Write a haiku\nabout rain"},)
    assert client.requests[0].sampling.max_tokens == 1024
    assert not list((data / "sessions").iterdir())


def test_a_pipe_and_an_argument_are_one_message(
    data: Path, client: ScriptedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pipe(monkeypatch, b"diff --git\r\n")
    command.run(_parse("Explain this", "--system", "Be brief.", "--max-tokens", "5"))
    assert client.requests[0].messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "diff --git\n\nExplain this"},
    )
    assert client.requests[0].sampling.max_tokens == 5


def test_a_pipe_continues_a_session_when_asked(
    data: Path, client: ScriptedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = SessionStore(data / "sessions").new()
    said = session.conversation.say("one")
    session.save(said, session.conversation.add(Message("assistant", "1", parent=said.id)))
    session.close()
    _pipe(monkeypatch, b"two")
    command.run(_parse("--continue"))
    assert [m["content"] for m in client.requests[0].messages or ()] == ["one", "1", "two"]
    assert len(SessionStore(data / "sessions").load(session.id).conversation.path()) == 4


@pytest.mark.parametrize(
    ("words", "text", "sentence"),
    [
        ((), b"", "no message"),
        ((), b"\xff\xfe", "not UTF-8"),
        (("--continue",), b"x", "no earlier conversation"),
        (("--resume", "2020"), b"x", "no session"),
        (("--n", "2"), b"x", "one answer"),
        (("--temperature", "hot"), b"x", "use a number"),
    ],
)
@pytest.mark.usefixtures("data", "client")
def test_wrong_use_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], text: bytes, sentence: str
) -> None:
    _pipe(monkeypatch, text)
    with pytest.raises(RequestError, match=sentence) as caught:
        command.run(_parse(*words))
    assert caught.value.exit_code == 2


def test_options_reach_the_request_and_the_engine(
    data: Path, client: ScriptedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pipe(monkeypatch, b"x")
    command.run(_parse("--depth", "4", "--thinking", "off", "--temperature", "0.5", "--seed", "7"))
    request = client.requests[0]
    assert (request.depth, request.thinking, request.sampling.temperature, request.sampling.seed) == (
        "4",
        False,
        0.5,
        7,
    )


def test_sessions_are_listed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(_parse("--sessions")) == 0
    assert "no saved" in capsys.readouterr().err
    session = SessionStore(data / "sessions").new()
    session.save(session.conversation.say("Rivers"))
    session.close()
    command.run(_parse("--sessions"))
    assert session.id in capsys.readouterr().out


def test_the_interface_never_imports_mlx() -> None:
    code = (
        "import sys, macspec_tui.app, macspec_tui.plain, macspec_tui.command, macspec.worker.process_client\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('mlx', 'mlx_lm', 'numpy', 'transformers')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_pipe_chat_does_not_import_the_screen() -> None:
    code = "import sys, macspec_tui.plain, macspec_tui.command\nprint('textual' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


@pytest.mark.model
def test_the_real_model_answers_a_pipe(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    words = [sys.executable, "-m", "macspec", "chat", "--max-tokens", "12", "--depth", "0"]
    done = subprocess.run(words, input="Say hello.", capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and "\x1b" not in done.stdout
    line = f"echo hi | {' '.join(words)} | head -c 1"
    closed = subprocess.run(line, shell=True, capture_output=True, text=True, env=environment, timeout=240)
    assert len(closed.stdout) == 1 and "Traceback" not in closed.stderr and "BrokenPipe" not in closed.stderr
