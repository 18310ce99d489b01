"""``macspec serve`` as a process of its own, with a fake engine in a third one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from macspec import cli

WORKER_TESTS = str(Path(__file__).parents[1] / "worker")

SCRIPT = """
import argparse, sys
from macspec.server import command
from macspec.worker import process_client
made = process_client.ProcessClient
process = process_client.ProcessOptions(factory="fake_engine:FakeEngine")
process_client.ProcessClient = lambda engine: made(engine, process=process)
# The names are made up; nothing of them could be downloaded.
command.ensure = lambda options: None
from macspec import cli
sys.exit(cli.main(["serve", *sys.argv[1:]]))
"""


class Serving:
    """A running ``macspec serve``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.lines = [process.stdout.readline() for _ in range(3)]
        found = re.search(r"http://[\w.]+:\d+/v1", self.lines[0])
        assert found is not None, self.lines
        self.url = found.group()

    def complete(self, prompt: str, **fields: Any) -> Any:
        """The open response to a completion request."""
        body = json.dumps({"prompt": prompt, "max_tokens": 10_000, **fields}).encode()
        request = urllib.request.Request(f"{self.url}/completions", body, {"content-type": "application/json"})
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120)

    def engine(self) -> int:
        """Process id of the engine."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=True)
        return int(found.stdout.split()[0])


Begin = Callable[..., Serving]


@pytest.fixture
def begin() -> Iterator[Begin]:
    running: list[subprocess.Popen[str]] = []

    def start(*words: str) -> Serving:
        environment = {**os.environ, "PYTHONPATH": WORKER_TESTS}
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, "--port", "0", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        running.append(process)
        return Serving(process)

    yield start
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def gone(pid: int) -> bool:
    stat = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return not stat.strip() or stat.strip().startswith("Z")


def test_three_lines_answers_and_a_clean_end(begin: Begin) -> None:
    serving = begin("--model", "fake/name", "--alias", "other")
    assert "fake/name" in serving.lines[1] and "curl http://" in serving.lines[2]
    assert json.load(serving.complete("a b c"))["choices"][0]["text"] == " a b c"
    engine = serving.engine()
    serving.process.send_signal(signal.SIGTERM)
    _, errors = serving.process.communicate(timeout=120)
    assert serving.process.returncode == 0 and "Traceback" not in errors
    assert "/v1/completions 200" in errors
    assert gone(engine)


def test_stop_ends_a_running_answer_with_an_error_event(begin: Begin) -> None:
    serving = begin()
    stream = serving.complete("!forever", stream=True)
    while b"!forever" not in stream.readline():
        pass
    engine = serving.engine()
    serving.process.send_signal(signal.SIGINT)
    rest = stream.read().decode()
    last = [line for line in rest.splitlines() if line.startswith("data: ")][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_died"
    _, errors = serving.process.communicate(timeout=120)
    assert serving.process.returncode == 0 and "Traceback" not in errors
    assert gone(engine)


def test_killed_engine_is_told_and_replaced(begin: Begin) -> None:
    serving = begin()
    stream = serving.complete("!forever", stream=True)
    while b"!forever" not in stream.readline():
        pass
    engine = serving.engine()
    os.kill(engine, signal.SIGKILL)
    rest = stream.read().decode()
    assert "ended by SIGKILL" in rest
    assert json.load(serving.complete("a"))["choices"][0]["text"] == " a"
    assert serving.engine() != engine


def test_killed_server_leaves_no_engine(begin: Begin) -> None:
    serving = begin()
    engine = serving.engine()
    serving.process.kill()
    serving.process.wait()
    while not gone(engine):
        time.sleep(0.01)


def test_port_in_use_is_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code = "import sys; from macspec import cli; sys.exit(cli.main(['serve', '--port', sys.argv[1]]))"
        done = subprocess.run([sys.executable, "-c", code, str(port)], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        f"macspec: Port {port} is already in use; stop the other program or choose another with --port.\n"
    )


def test_model_that_cannot_be_loaded_is_a_sentence(begin: Begin) -> None:
    code = SCRIPT
    environment = {**os.environ, "PYTHONPATH": WORKER_TESTS}
    words = [sys.executable, "-c", code, "--port", "0", "--model", "missing"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == 2 and done.stderr.splitlines()[-1] == "macspec: There is no model 'missing'."


def test_port_beyond_the_last_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--port", "65536"]) == 2
    assert "--port: should be 65535 or less" in capsys.readouterr().err


def test_live_status_line(begin: Begin) -> None:
    from macspec.server.answers import Service
    from macspec.server.config import ServerConfig
    from macspec.server.status import StatusLine
    from macspec.worker.protocol import EngineStats
    from macspec.worker.scripted import ScriptedClient

    line = StatusLine(Service(ScriptedClient(), ServerConfig()), sys.stderr)
    after = EngineStats(generation_tokens=60, rounds=20, verified=50, completed=3)
    assert line.text(EngineStats(), after, 2.0) == (
        "0 running · 0 waiting · 30 tok/s · 3.00 tokens a round · depth 2.5 · 3 answered"
    )
    assert line.text(after, after, 2.0) == "0 running · 0 waiting · idle · 3 answered"
