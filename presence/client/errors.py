"""Errors of the client: whatever a server, a network or a token can cause is a `PresenceError`.

Two are Python's own exceptions as well: `EncodeError`, for an argument that the protocol forbids, is a
`ValueError`, and `RequestTimeout` a `TimeoutError`. Mistakes of the program, and waits with a time-out of
their own, raise Python's exceptions: ValueError, TypeError, RuntimeError, TimeoutError.
"""

import os

from presence.protocol import Code
from presence.protocol.errors import PresenceError as PresenceError  # noqa: PLC0414 - exported from here


class Unreachable(PresenceError):
    """The first attempt failed: no connection, no answer, or an invalid one."""

    def __init__(self, server: str, why: str) -> None:
        super().__init__(server, why)  # what a copy is made from

    def __str__(self) -> str:
        server, why = self.args
        return f"cannot reach {server}: {why}"


class NoToken(PresenceError):
    """The first attempt got no token from the program; `__cause__` is its exception."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.__cause__ = cause

    def __str__(self) -> str:
        (cause,) = self.args
        return f"no token: {type(cause).__name__}: {cause}"


class RequestError(PresenceError):
    """One request failed; the client goes on."""


class NotConnected(RequestError):
    """Not logged in at the moment, so nothing was sent."""


class Uncertain(RequestError):
    """The request may or may not have been carried out: a message sent again may be delivered twice."""


class ConnectionLost(Uncertain):
    """The connection broke before the answer."""


class RequestTimeout(Uncertain, TimeoutError):
    """No answer came in time."""


class CodedError(PresenceError):
    """Carries a reason code of the protocol, perhaps unknown to `protocol.Code`, its name and a message.

    `retry_after`: seconds to wait before another try; None if the server named none.
    """

    def __init__(self, code: int, reason: str, message: str = "", retry_after: float | None = None) -> None:
        super().__init__(code, reason, message, retry_after)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.reason} ({self.code})" + (f": {self.message}" if self.message else "")


class RequestFailed(CodedError, RequestError):
    """The server refused a request; it did nothing."""


class Unsupported(RequestFailed):
    """This server does not support that kind of request (313)."""


class RecipientOffline(RequestFailed):
    """The recipient of a message has no session (314)."""


class RecipientDisconnected(RequestFailed):
    """The recipient of a message has lost its connection and has not returned yet (317).

    It may return until `retry_after`; nothing was delivered.
    """


class NotAllowed(RequestFailed):
    """This user may not see the recipient of a message, or be in a room (318)."""


class LimitReached(RequestFailed):
    """More than the server allows, as of watches on one connection (315); nothing was done."""


class Busy(RequestFailed):
    """Nothing was done, try after `retry_after`.

    The server is at its limits or its Redis is unreachable (404), or this client asks too often (311).
    """


class ServerFailed(CodedError, Uncertain):
    """The server failed while carrying out the request (403)."""


class Ended(CodedError):
    """The client has ended and does not reconnect by itself."""


class LoginRefused(Ended):
    """The server refused the login."""


class Replaced(Ended):
    """The same device of the same user has logged in elsewhere (300)."""


class Kicked(Ended):
    """An operator ended the user's sessions (301)."""


class SessionLimit(Ended):
    """The user has too many sessions, and this one made room for a newer one (304)."""


class Banned(Ended):
    """An operator keeps the user or this device out, and the ban has no end (305)."""


FAILED: dict[int, type[RequestFailed | ServerFailed]] = {
    Code.UNSUPPORTED: Unsupported,
    Code.RECIPIENT_OFFLINE: RecipientOffline,
    Code.RECIPIENT_DISCONNECTED: RecipientDisconnected,
    Code.NOT_ALLOWED: NotAllowed,
    Code.TOO_LARGE: LimitReached,
    Code.SERVER_ERROR: ServerFailed,
    Code.BUSY: Busy,
    Code.RATE_LIMITED: Busy,
}
"""Error replies to a request; all others are a `RequestFailed`."""

ENDED: dict[int, type[Ended]] = {
    Code.REPLACED: Replaced,
    Code.KICKED: Kicked,
    Code.SESSION_LIMIT: SessionLimit,
    Code.BANNED: Banned,
}
"""Ends of a logged-in connection for good; all others are an `Ended`."""


def error_text(error: BaseException) -> str:
    """Return the text of a connection error; trio wraps the system's error, once per address."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, OSError):
        error = cause
    if isinstance(error, OSError) and error.errno and type(error).__module__ == "builtins":
        return os.strerror(error.errno)  # ssl and the resolver have numbers of their own
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
