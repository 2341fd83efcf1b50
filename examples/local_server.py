"""A presence server of the example's own, with an embedded Redis."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple


class LocalServer(NamedTuple):
    """Where it is."""

    host: str
    port: int
    redis_url: str


@contextlib.contextmanager
def local_server(*flags: str) -> Iterator[LocalServer]:
    """Run ``presence serve`` on a free port for the length of a ``with`` block, which SIGTERM ends, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    command = [sys.executable, "-m", "presence", "serve", "--port", "0", "--no-admin", "--log-format", "json"]
    with subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        redis_url = ""
        for line in process.stderr:
            if line.startswith("ready "):
                host, _, port = line.split()[1].rpartition(":")
                break
            entry = json.loads(line) if line.startswith("{") else {"event": line.strip()}
            if entry["event"] == "embedded Redis started":
                redis_url = entry["url"]
            elif entry.get("level") == "error":
                print(line, end="", file=sys.stderr)
        else:
            raise SystemExit("the presence server did not start")
        try:
            yield LocalServer(host, int(port), redis_url)
        finally:
            process.terminate()
