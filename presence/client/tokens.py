"""What the modules of the client share: states, counters, tokens."""

import base64
import binascii
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from presence import protocol
from presence.protocol import TOKEN_MAX_BYTES, EncodeError, Kind, Packet

Payload = Mapping[str, Any]
TokenSource: TypeAlias = Callable[[], str | Awaitable[str]]
BlockingTokenSource: TypeAlias = Callable[[], str]


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


class ServerClock:
    """The clock of the last server, as its answer to the login gave it."""

    def __init__(self) -> None:
        self._offset_s: float | None = None  # from `now` to Unix seconds

    def set(self, time_ms: int | None, now: float) -> None:
        """Note the server's Unix milliseconds; None if it did not say."""
        self._offset_s = None if time_ms is None else time_ms / 1000 - now

    def time_s(self, now: float) -> float | None:
        """Return the Unix seconds of the server; None if unknown."""
        return None if self._offset_s is None else now + self._offset_s


# Tokens come from the program; only the server verifies them.


def checked_token(token: object) -> str:
    """Return the token that the program returned; raise it if it is an exception.

    Raises:
        EncodeError: it is not a valid token field.
    """
    if isinstance(token, Exception):
        raise token
    if not isinstance(token, str) or not token:
        raise EncodeError("the token must be a string that is not empty")
    if len(token.encode(errors="replace")) > TOKEN_MAX_BYTES:
        raise EncodeError(f"the token is longer than {TOKEN_MAX_BYTES} bytes")
    protocol.encode(Packet(Kind.UPDATE, None, {"token": token}))
    return token


def remaining_lifetime_s(token: str, server_time_s: float | None) -> float | None:
    """Return the seconds until a JSON Web Token expires; None for any other token, or if it does not say.

    Nothing is verified, and the client's clock, which may be wrong by hours, is not used. `server_time_s`:
    Unix seconds by the server's clock; None if unknown: then the token counts as new.
    """
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        begin = claims["iat"] if server_time_s is None else server_time_s
        seconds = float(claims["exp"]) - float(begin)
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError, binascii.Error):
        return None
    return seconds if math.isfinite(seconds) else None
