"""What a run has used so far: processor time of the process and of its Redis, and Redis' count of calls."""

import contextlib
import ctypes
import gc
import os
import time
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.bench import measures
from presence.store.client import open_client

_SCRIPTS = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall")
_OURS = ("cmdstat_info", "cmdstat_script", "cmdstat_hello", "cmdstat_client")


@dataclass(frozen=True)
class Used:
    """Sums since the start, or between two moments.

    Attributes:
        at: monotonic time; of a difference seconds.
        cpu_s: processor time of this process, user and kernel, of all threads.
        redis_cpu_s: the same of Redis; 0 without one.
        scripts: scripts that Redis ran.
        commands: commands that it ran, those inside scripts and the scripts too.
    """

    at: float
    cpu_s: float
    redis_cpu_s: float
    scripts: int
    commands: int

    def since(self, before: "Used") -> "Used":
        """Return the difference."""
        mine, old = asdict(self), asdict(before)
        return Used(**{name: mine[name] - old[name] for name in mine})


class Meter:
    """Reads what is used.

    Args:
        url: of the Redis; "" without one.
    """

    def __init__(self, url: str) -> None:
        self._client: Any = open_client(url) if url else None

    def used(self) -> Used:
        """Return the sums up to now."""
        scripts, commands, redis_cpu_s = 0, 0, 0.0
        if self._client:
            self._client.connection_pool.disconnect()  # it may be another server by now
            redis_cpu_s = measures.cpu_seconds(int(self._client.info("server")["process_id"]))
            calls = {name: each["calls"] for name, each in self._client.info("commandstats").items()}
            scripts = sum(calls.get(name, 0) for name in _SCRIPTS)
            commands = sum(count for name, count in calls.items() if not name.startswith(_OURS))
        return Used(time.monotonic(), time.process_time(), redis_cpu_s, scripts, commands)

    def memory(self) -> tuple[int, int]:
        """Return bytes of this process that are of no file, and bytes that Redis uses for data.

        What is free is given back before: who comes next would find room in it, and seem to need none.
        """
        gc.collect()
        with contextlib.suppress(AttributeError):  # of another C library
            ctypes.CDLL(None).malloc_trim(0)
        if self._client:
            self._client.connection_pool.disconnect()
        held = int(self._client.info("memory")["used_memory"]) if self._client else 0
        return measures.memory(os.getpid()).pss, held

    def close(self) -> None:
        """Close the connection."""
        if self._client:
            self._client.close()
