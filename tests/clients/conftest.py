"""``macspec serve`` with the embedded model, started once, for clients people really use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """Base address, ending in ``/v1``."""
    words = [sys.executable, "-m", "macspec", "serve", "--port", "0", "--drafter", "none"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    found = re.search(r"http://\S+/v1", first)
    if found is None:
        process.kill()
        pytest.fail(f"macspec serve did not start: {first}{process.communicate()[1]}")
    yield found.group()
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.fixture
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
