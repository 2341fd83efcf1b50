"""What the parts of a client share: states, tokens, limits, counters, and what answers mean."""

import base64
import binascii
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from presence import protocol
from presence.protocol import Kind, Packet

Payload = Mapping[str, Any]
TokenSource: TypeAlias = Callable[[], str | Awaitable[str]]
BlockingTokenSource: TypeAlias = Callable[[], str]


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


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counters since the start."""

    logins: int  # how often it came online
    losses: int  # how often a connection was lost, or an attempt failed
    beats: int  # how many were sent
    round_trip_s: float | None  # of the last beat with an answer on this connection; None before one
    pushes_waiting: int  # that nobody took yet
    pushes_superseded: int  # changes that went, where too many waited, for a later one of the user
    pushes_dropped: int  # the oldest ones that went because there were none of those


# Tokens come from the program. Whether they are good, the server says.


def checked_token(token: object) -> str:
    """Return what a source gave; raise it if it is an exception.

    Raises:
        protocol.EncodeError: it is no token by the rules of the protocol.
    """
    if isinstance(token, Exception):
        raise token
    protocol.encode(Packet(Kind.UPDATE, None, {"token": token}))
    return str(token)


def remaining_lifetime_s(token: str, server_time_s: float | None) -> float | None:
    """Return for how many seconds more a token is good; None if that cannot be read in it.

    Nothing is verified, and no clock of the client is asked, which may be wrong by hours.

    Args:
        token: one that is no JSON Web Token is good, too; only nobody knows until when.
        server_time_s: Unix seconds by the server's clock. None: it is not known, and the token counts as new.
    """
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        begin = claims["iat"] if server_time_s is None else server_time_s
        seconds = float(claims["exp"]) - float(begin)
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError, binascii.Error):
        return None
    return seconds if math.isfinite(seconds) else None
