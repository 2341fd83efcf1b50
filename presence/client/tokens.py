"""Tokens as a client handles them: where they come from, and how long they live by the server's clock.

Tests: `tests/client/test_token_sources.py`, `tests/client/test_renewal.py`.
"""

import base64
import binascii
import json
import math
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from presence import protocol
from presence.protocol import TOKEN_MAX_BYTES, EncodeError, Kind, Packet

TokenSource: TypeAlias = Callable[[], str | Awaitable[str]]
BlockingTokenSource: TypeAlias = Callable[[], str]


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
