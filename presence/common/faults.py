"""Faults: a mistake in one piece of work ends that piece; it is logged and counted, and ends no server.

A long-lived task works for many clients. What it does for one request, message, record or connection runs
inside `Faults.contained`, so that an exception there reaches nobody else. The core (sessions, wheel, outbox,
leases) is the exception: after a mistake there its state would be wrong, and a crash is the better end.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import structlog

from presence.common.logs import RateLimited

LOG_INTERVAL_S: Final = 10.0  # between two tracebacks of one kind of work


WORK: Final = (
    *("query", "watch", "watch event", "watch subscription", "push"),
    *("message", "delivery", "notice", "control channel"),
    *("explain request", "stats request", "statistics", "files", "token keys"),
)
"""All kinds of work."""


def _leave_alone(_session: Any) -> None:
    """Do nothing about the connection of a session."""


class Faults:
    """The faults of one server.

    Args:
        disconnect: ends the connection of a session with `server_error`, so that its client returns.

    Attributes:
        disconnect: as above.
        counts: faults since the start, by kind of work.
    """

    def __init__(self, disconnect: Callable[[Any], object] = _leave_alone) -> None:
        self.disconnect = disconnect
        self.counts: dict[str, int] = {}
        self._log = RateLimited(structlog.get_logger(__name__), interval_s=LOG_INTERVAL_S)

    @contextmanager
    def contained(self, work: str, failed: Callable[[], object] | None = None) -> Iterator[None]:
        """Keep an exception of the block from leaving it.

        Args:
            work: the kind of work, for log and counter.
            failed: called after an exception: it answers the request, or ends the connection. What it raises
                is contained, too.
        """
        try:
            yield
        except Exception as error:
            self.note(work, error)
            if failed is not None:
                with self.contained(work):
                    failed()

    def note(self, work: str, error: Exception) -> None:
        """Log and count an exception that was caught."""
        self.counts[work] = self.counts.get(work, 0) + 1
        self._log.error(f"{work} failed", exc_info=error)
