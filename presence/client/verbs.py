"""What both shells share: limits, what answers mean, what is counted."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from presence.client.inbox import Inbox
from presence.client.machine import Machine

REQUEST_TIMEOUT_S = 10.0
MAX_PUSHES = 1000  # that wait to be taken
READ_BYTES = 65_536

Payload = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counters since the start.

    Attributes:
        logins: how often it came online.
        losses: how often a connection was lost, or an attempt failed.
        beats: how many were sent.
        round_trip_s: of the last beat with an answer on this connection; None before one.
        pushes_waiting: pushes that nobody took yet.
        pushes_superseded: changes of presence that went, where too many waited, for a later one of the user.
        pushes_dropped: the oldest ones that went because there were none of those.
    """

    logins: int
    losses: int
    beats: int
    round_trip_s: float | None
    pushes_waiting: int
    pushes_superseded: int
    pushes_dropped: int

    @classmethod
    def of(cls, machine: Machine, inbox: Inbox) -> Self:
        """Read the counters."""
        return cls(
            machine.returns.logins,
            machine.returns.losses,
            machine.beats,
            machine.round_trip_s,
            len(inbox),
            inbox.superseded,
            inbox.dropped,
        )


def tls_context(tls: bool | ssl.SSLContext) -> ssl.SSLContext | None:
    """Return what to connect with; None: without TLS."""
    return (ssl.create_default_context() if tls else None) if isinstance(tls, bool) else tls


def delivered(payload: Payload) -> int:
    """Return the number of sessions that a message went to."""
    count: int = payload.get("delivered", 0)
    return count


def why(error: BaseException) -> str:
    """Return in words what broke a connection: trio wraps the system's own error, once for each address."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, OSError):
        error = cause
    if isinstance(error, OSError) and error.errno and type(error).__module__ == "builtins":
        return os.strerror(error.errno)  # ssl and the resolver have numbers of their own
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
