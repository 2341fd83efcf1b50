"""Lets commands of the same user find the servers that run on this machine.

A server that is ready has a file in a runtime directory of its own, which only its user can enter: the file
has the Redis URL, perhaps with a password.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

from presence.common.runtime_dir import RuntimeDirectory, live_directories
from presence.common.scarcity import scarcity
from presence.config.settings import Settings

_FILE: Final = "server.json"
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to reach what listens everywhere


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server of this machine."""

    pid: int  # of the supervisor, with several workers
    host: str  # where this machine reaches it
    port: int
    admin_url: str | None  # ``http://127.0.0.1:7480/``; None: it serves no HTTP
    redis_url: str  # with its password
    prefix: str  # of its keys

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port} (process {self.pid})"


class Announcement:
    """Makes this server known from its call until `withdraw`."""

    def __init__(self, settings: Settings, redis_url: str, admin_url: str | None) -> None:
        self._prefix = settings.prefix
        self._redis_url = redis_url
        self._admin_url = admin_url
        self._directory: RuntimeDirectory | None = None

    def __call__(self, host: str, port: int) -> None:
        """Announce that the server is ready there. A failure is only logged."""
        host = _LOOPBACK.get(host, host)
        server = RunningServer(os.getpid(), host, port, self._admin_url, self._redis_url, self._prefix)
        try:
            self._directory = RuntimeDirectory()
            unfinished = self._directory.path / f"{_FILE}.new"
            unfinished.touch(mode=0o600)
            unfinished.write_text(json.dumps(asdict(server)), "utf-8")
            unfinished.rename(self._directory.path / _FILE)
        except (OSError, MemoryError) as error:
            import structlog  # noqa: PLC0415 - commands work without it

            log = structlog.get_logger("presence.server.server")
            log.warning("commands cannot find this server", error=scarcity(error) or str(error))

    def withdraw(self) -> None:
        if self._directory is not None:
            self._directory.close()


def running_servers() -> list[RunningServer]:
    """Return the servers of this user that are ready, by address."""
    found = []
    for directory in live_directories():
        with suppress(OSError, ValueError, TypeError):  # none, or of another version
            found.append(RunningServer(**json.loads((directory / _FILE).read_text("utf-8"))))
    return sorted(found, key=lambda server: (server.host, server.port))
