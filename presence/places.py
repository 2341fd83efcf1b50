"""A worker's place, seen from the process that fills it: who is there, and when the next one is due."""

import math
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from presence.backoff import backoff_s
from presence.heartbeats import SilenceWatch

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_LIMIT_S: Final = 30.0


def ended(status: int) -> dict[str, int | str]:
    """Return what the log says of an exit status; a negative one is that of the signal that ended it."""
    if status >= 0:
        return {"status": status}
    names = {each.value: each.name for each in signal.Signals}
    return {"status": status, "signal": names.get(-status, "")}


@dataclass
class Place:
    """A place for a worker, and the process that fills it.

    Attributes:
        number: from 1.
        pid: 0 while there is none.
        line: our end of the socket pair.
        started_at: monotonic seconds.
        start_at: when the next one is due, while there is none.
        failures: ends in a row, each after a short life.
        is_ready: whether it has said that it is at work.
        is_hung: whether it was ended since its event loop stood still.
        kill_at: when it is killed if it has not ended by then, as it was asked to.
        watch: over its heartbeats.
    """

    number: int
    pid: int = 0
    line: socket.socket | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    failures: int = 0
    is_ready: bool = False
    is_hung: bool = False
    kill_at: float = math.inf
    watch: SilenceWatch = field(default_factory=lambda: SilenceWatch(math.inf, 0.0))

    @property
    def pause_s(self) -> float:
        """How long to wait before the next start; 0.0 after a long life."""
        return backoff_s(self.failures - 1, BACKOFF_FIRST_S, BACKOFF_LIMIT_S) if self.failures else 0.0

    def tell(self, order: bytes) -> None:
        """Give an order to the process, if there is one that can hear it."""
        if self.line is not None:
            with suppress(OSError):
                self.line.send(order)
