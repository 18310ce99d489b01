"""Requests generated from our own API description. Needs schemathesis (``pip install schemathesis``)."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from macspec.worker.scripted import Reply, ScriptedClient

if TYPE_CHECKING:
    from tests.macspec.server.conftest import Start

CASES = 2000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed"),
]


@pytest.mark.timeout(900)
async def test_generated_requests_never_give_5xx_or_hang(start: Start, tmp_path: Path) -> None:
    server = await start(ScriptedClient(Reply("Yes, that is so.", thinking="hm", tool_calls=[("f", "{}")])))
    # About 1,500 boundary values of the fields, then 100 random bodies, right and wrong ones, for each operation.
    words = [
        "run",
        f"{server.url}/openapi.json",
        "--checks",
        "not_a_server_error,status_code_conformance",
        "--phases",
        "coverage,fuzzing",
    ]
    # The description names every status that can come; 422, which clients do not expect, is not among them.
    words += ["--max-examples", "100", "--request-timeout", "20", "--seed", "1", "--no-color"]
    code = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, *words), stdout=asyncio.subprocess.PIPE, cwd=tmp_path
    )
    told = (await process.communicate())[0].decode()
    assert process.returncode == 0, told
    found = re.search(r"(\d+) generated, (\d+) passed", told)
    assert found is not None and int(found[2]) >= CASES, told
    engine = server.engine
    # Many requests got as far as the engine, and none was left there.
    assert len(engine.requests) > CASES // 10 and engine.active == 0
    assert (await server.chat()).status_code == 200
