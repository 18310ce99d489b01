"""Throw generated requests at our own API description and look for 5xx answers and hangs.

    pip install schemathesis
    python benchmarks/server/fuzz.py --cases 2000

The server runs in this process in front of a scripted engine, so only the HTTP side is tested.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time

from macspec.server.app import create_app
from macspec.server.config import ServerConfig
from macspec.server.transport import listen, make_server
from macspec.worker.scripted import Reply, ScriptedClient


def main() -> int:
    """Run; the exit code is schemathesis'."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000, help="about how many requests in all")
    options = parser.parse_args()
    config = ServerConfig(port=0, shutdown_timeout=0.0)
    listener = listen(config)
    engine = ScriptedClient(Reply("Yes, that is so."))
    server = make_server(create_app(engine, config), config)

    async def serve() -> None:
        await engine.start()
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    per_operation = max(1, options.cases // 10)
    command = ["schemathesis", "run", f"{url}/openapi.json", "--checks", "not_a_server_error"]
    command += ["--max-examples", str(per_operation), "--request-timeout", "20", "--phases", "fuzzing"]
    try:
        code = subprocess.run([f"{sys.prefix}/bin/{command[0]}", *command[1:]], check=False).returncode
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
    print(json.dumps({"requests_to_the_engine": len(engine.requests), "still_running": engine.active}))
    return code or int(engine.active > 0)


if __name__ == "__main__":
    sys.exit(main())
