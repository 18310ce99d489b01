"""``macspec serve`` with the embedded model and its drafter, started once, for clients people really use."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
#: Interpreters besides our own that clients may be installed for; ``scripts/clients.sh`` makes them.
PYTHONS = [sys.executable, *map(str, sorted((HERE.parents[1] / ".venv").glob("clients-*/bin/python")))]


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base address, ending in ``/v1``."""
    words = [sys.executable, "-m", "macspec", "serve", "--port", "0"]
    # Nothing was ever downloaded here, which other servers stumble over.
    environment = {**os.environ, "HF_HOME": str(tmp_path_factory.mktemp("hub") / "none")}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    first = process.stdout.readline()
    found = re.search(r"http://\S+/v1", first)
    if found is None:
        process.kill()
        pytest.fail(f"macspec serve did not start: {first}{process.communicate()[1]}")
    yield found.group()
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 0


@pytest.fixture(scope="session")
def model(url: str) -> str:
    """The served name."""
    import openai

    with openai.OpenAI(base_url=url, api_key="x") as client:
        return client.models.list().data[0].id


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback must not go through a proxy."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def python_with() -> Callable[[str], str]:
    """An interpreter that can import a module; the test is skipped if there is none."""

    def find(module: str) -> str:
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        for python in PYTHONS:
            if subprocess.run([python, "-c", code], check=False).returncode == 0:
                return python
        pytest.skip(f"{module} is not installed; make test-clients installs it")

    return find


@pytest.fixture
def foreign(
    url: str, model: str, tmp_path: Path, python_with: Callable[[str], str]
) -> Callable[[str, str], dict[str, Any]]:
    """Run a script of ``foreign/`` with a Python that has this module, and read what it found."""

    def run(module: str, script: str) -> dict[str, Any]:
        words = [python_with(module), str(HERE / "foreign" / script), url, model]
        # litellm's price list would come from the network.
        settings = {"OPENAI_API_BASE": url, "OPENAI_API_KEY": "x", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=280,
            cwd=tmp_path,
            env={**os.environ, **settings},
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run
