"""The states of `presence.client.machine`."""

from enum import Enum
from typing import Final


class State(Enum):
    """Where a client stands."""

    FETCHING_TOKEN = "fetching a token"  # noqa: S105 - none
    CONNECTING = "connecting"
    LOGGING_IN = "logging in"
    ONLINE = "online"
    LOGGING_OUT = "logging out"
    WAITING = "waiting to return"
    ENDED = "ended"


CONNECTED: Final = frozenset({State.LOGGING_IN, State.ONLINE, State.LOGGING_OUT})
