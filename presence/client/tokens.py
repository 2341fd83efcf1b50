"""Where tokens come from, and until when they are good. Whether they are, the server says."""

import base64
import binascii
import json
import math
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import protocol
from protocol import Kind, Packet

TokenSource: TypeAlias = Callable[[], str | Awaitable[str]]
BlockingTokenSource: TypeAlias = Callable[[], str]


def given(token: object) -> str:
    """Return what a source gave; raise it if it is an exception.

    Raises:
        protocol.EncodeError: it is no token by the rules of the protocol.
    """
    if isinstance(token, Exception):
        raise token
    protocol.encode(Packet(Kind.UPDATE, None, {"token": token}))
    return str(token)


def left_s(token: str, server_time_s: float | None) -> float | None:
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
