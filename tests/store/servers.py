"""A Redis or Valkey that a test can kill and restart at the same address."""

import shutil
from collections.abc import Callable
from pathlib import Path

from loadtest.servers import LocalRedis
from presence.store.client import Redis
from presence.store.embedded import find_binary

BINARY = "TESTS_REDIS_BINARY"  # environment variable: one of `BINARIES`
BINARIES: dict[str, Callable[[], str | None]] = {
    "embedded": find_binary,
    "redis-server": lambda: shutil.which("redis-server"),
}


class Server(LocalRedis):
    """A server in `folder`; with `keep` its data survive a kill. `extra`: its arguments."""

    client: Redis

    def __init__(self, binary: str, folder: Path, *, keep: bool = False, extra: tuple[str, ...] = ()) -> None:
        super().__init__(binary, folder, keep=keep, extra=("--enable-debug-command", "yes", *extra))

    def change_history(self) -> None:
        """Take a new replication id, as a failover or a restart with all data does."""
        self.client.execute_command("DEBUG", "CHANGE-REPL-ID")  # type: ignore[no-untyped-call]  # redis-py's
