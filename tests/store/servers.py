"""A Redis or Valkey that a test can kill and restart at the same address."""

import subprocess
from functools import cache
from pathlib import Path

from loadtest.servers import LocalRedis
from presence.store.redis_client import Redis


class Server(LocalRedis):
    """A server in `folder`; with `keep` its data survive a kill. `extra`: its arguments."""

    client: Redis

    def __init__(self, binary: str, folder: Path, *, keep: bool = False, extra: tuple[str, ...] = ()) -> None:
        debug = () if is_redis_6(binary) else ("--enable-debug-command", "yes")  # which Redis 6 has anyway
        super().__init__(binary, folder, keep=keep, extra=(*debug, *extra))

    def change_history(self) -> None:
        """Take a new replication id, as a failover or a restart with all data does."""
        self.client.execute_command("DEBUG", "CHANGE-REPL-ID")  # type: ignore[no-untyped-call]  # redis-py's


@cache
def is_redis_6(binary: str) -> bool:
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    return " v=6." in version.stdout
