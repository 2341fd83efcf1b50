"""Fault containment: an unexpected exception in one piece of work is logged and counted, and ends only that.

A long-lived task works for many clients. Its work for one request, message, record or connection runs inside
`Faults.contained`, so that an exception there does not affect other clients. Engine, wheel, outbox and leases
are not contained: after an exception their state would be wrong, and a crash is better.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

import structlog

from presence.common.logs import RateLimited
from presence.common.scarcity import fault_fields

LOG_INTERVAL_S: Final = 10.0  # between two tracebacks of one kind of work

WORK: Final = (
    *("query", "watch", "watch event", "watch subscription", "push"),
    *("message", "delivery", "delivery report", "confirmation", "notice", "control channel"),
    *("explain request", "stats request", "statistics", "files", "token keys"),
)
"""All kinds of work."""


def _leave_alone(_session: Any) -> None:
    """Leave the session's connection open."""


class Faults:
    """The faults of one server, counted since the start by kind of work.

    `disconnect` ends the connection of a session with `server_error`, so that its client returns.
    """

    def __init__(self, disconnect: Callable[[Any], object] = _leave_alone) -> None:
        self.disconnect = disconnect
        self.counts: dict[str, int] = {}
        self._log = RateLimited(structlog.get_logger(__name__), interval_s=LOG_INTERVAL_S)

    def contained(self, work: str, failed: Callable[[], object] | None = None) -> "_Containment":
        """Log and count an exception of the block instead of raising it.

        After one `failed` is called, to answer the request or close the connection; its exceptions are
        contained too.
        """
        return _Containment(self, work, failed)

    def record(self, work: str, error: Exception) -> None:
        """Log and count an exception that was caught; one that means a scarcity needs no traceback."""
        self.counts[work] = self.counts.get(work, 0) + 1
        self._log.error(f"{work} failed", **fault_fields(error))


class _Containment:
    """The block of `Faults.contained`; a generator would take three times as long, several times a change."""

    __slots__ = ("_failed", "_faults", "_work")

    def __init__(self, faults: Faults, work: str, failed: Callable[[], object] | None) -> None:
        self._faults = faults
        self._work = work
        self._failed = failed

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._faults.record(self._work, error)
        if self._failed is not None:
            with self._faults.contained(self._work):
                self._failed()
        return True
