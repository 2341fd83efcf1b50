"""The states of a client, and its counters.

Tests: `tests/client/test_state_machine.py`, `tests/client/test_handles.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

Payload = Mapping[str, Any]


class State(Enum):
    """The state of a client."""

    FETCHING_TOKEN = "fetching a token"  # noqa: S105 - none
    CONNECTING = "connecting"
    LOGGING_IN = "logging in"
    ONLINE = "online"
    LOGGING_OUT = "logging out"
    WAITING = "waiting to return"
    ENDED = "ended"


CONNECTED: Final = frozenset({State.LOGGING_IN, State.ONLINE, State.LOGGING_OUT})


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counters since the start."""

    logins: int  # logins granted
    losses: int  # connections lost, and failed attempts
    keepalives: int  # sent
    round_trip_s: float | None  # of the last answered keepalive on this connection; None before one
    pushes_waiting: int  # queued for the program
    pushes_superseded: int  # changes dropped from a full queue because a later one of the user was queued
    pushes_dropped: int  # oldest pushes of a full queue dropped, as `Dropped` tells the program
