"""The server's reaction to each kind of input in each state of a connection, as data.

`SPEC.md` prints this table, and the tests compare a session with it cell by cell.

Tests: `tests/protocol/test_spec.py`.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from presence.protocol.constants import Code, Kind


class ConnectionState(Enum):
    """States of a connection, as the server sees it."""

    CONNECTED = "connected"  # accepted, not logged in
    LOGGED_IN = "logged_in"
    CLOSING = "closing"  # the final packet was sent; further input is discarded


class Other(Enum):
    """Input other than a valid packet of a known kind."""

    UNKNOWN = "unknown kind"  # a valid packet of a kind that this version does not know
    INVALID = "invalid packet"  # `ProtocolError.kind` is set: kind, and perhaps the id, were readable
    MALFORMED = "malformed frame"  # `ProtocolError.kind` is None; a length over the limit, too
    LOGIN_TIMEOUT = "login timeout"  # no complete login within the login time-out of the accept


class ServerAnswer(Enum):
    """Answers of the server. Ok and error carry the request's id, or nil if there is none."""

    NOTHING = "nothing"
    OK = "ok"
    OK_OR_ERROR = "ok, or error and close"  # depends on load, token …
    OK_OR_REFUSAL = "ok or error"  # depends on the request; the connection stays
    OK_IF_ID = "ok if it has an id"
    ERROR = "error"
    GOODBYE = "goodbye"


class Reaction(NamedTuple):
    """One cell of the table.

    Attributes:
        answer: sent by the server.
        code: the reason code in an error or a goodbye; None there means that of the `ProtocolError`, or of
            the refused request.
        then: the state afterwards (of ``OK_OR_ERROR``: after the ok; after the error it is closing).
        activity: whether it resets the idle time-out.
        offline: whether the session ends immediately, without grace: after a logout, and after a code that
            forbids reconnecting.
    """

    answer: ServerAnswer
    code: Code | None
    then: ConnectionState
    activity: bool = False
    offline: bool = False


Trigger = Kind | Other

_CONNECTED, _LOGGED_IN, _CLOSING = (
    ConnectionState.CONNECTED,
    ConnectionState.LOGGED_IN,
    ConnectionState.CLOSING,
)

_NOT_LOGGED_IN: Final = Reaction(ServerAnswer.ERROR, Code.NOT_LOGGED_IN, _CLOSING)
_REFUSED: Final = Reaction(ServerAnswer.ERROR, None, _CLOSING)
_REFUSED_SESSION: Final = Reaction(ServerAnswer.ERROR, None, _CLOSING, offline=True)
_UNSUPPORTED: Final = Reaction(ServerAnswer.ERROR, Code.UNSUPPORTED, _LOGGED_IN, activity=True)
_REQUEST: Final = Reaction(ServerAnswer.OK_OR_REFUSAL, None, _LOGGED_IN, activity=True)
_MISPLACED: Final = Reaction(ServerAnswer.ERROR, Code.PROTOCOL_ERROR, _CLOSING, activity=True, offline=True)

_EXCEPTIONS: Final[Mapping[tuple[ConnectionState, Trigger], Reaction]] = {
    (_CONNECTED, Kind.LOGIN): Reaction(ServerAnswer.OK_OR_ERROR, None, _LOGGED_IN, activity=True),
    (_CONNECTED, Other.INVALID): _REFUSED,
    (_CONNECTED, Other.MALFORMED): _REFUSED,
    (_CONNECTED, Other.LOGIN_TIMEOUT): Reaction(ServerAnswer.ERROR, Code.LOGIN_TIMEOUT, _CLOSING),
    (_LOGGED_IN, Kind.LOGIN): _MISPLACED,
    (_LOGGED_IN, Kind.KEEPALIVE): Reaction(ServerAnswer.OK_IF_ID, None, _LOGGED_IN, activity=True),
    (_LOGGED_IN, Kind.MESSAGE): _REQUEST,
    (_LOGGED_IN, Kind.QUERY): _REQUEST,
    (_LOGGED_IN, Kind.WATCH): _REQUEST,
    (_LOGGED_IN, Kind.UNWATCH): _REQUEST,
    (_LOGGED_IN, Kind.UPDATE): _REQUEST,
    (_LOGGED_IN, Kind.LOGOUT): Reaction(ServerAnswer.OK, None, _CLOSING, activity=True, offline=True),
    (_LOGGED_IN, Kind.OK): _MISPLACED,
    (_LOGGED_IN, Kind.ERROR): _MISPLACED,
    (_LOGGED_IN, Kind.PRESENCE): _MISPLACED,
    (_LOGGED_IN, Kind.DELIVER): _MISPLACED,
    (_LOGGED_IN, Kind.GOODBYE): _MISPLACED,
    (_LOGGED_IN, Kind.CHANGES): _MISPLACED,
    (_LOGGED_IN, Kind.ROOMS): _MISPLACED,
    (_LOGGED_IN, Other.INVALID): _REFUSED_SESSION,
    (_LOGGED_IN, Other.MALFORMED): Reaction(ServerAnswer.GOODBYE, None, _CLOSING, offline=True),
    (_LOGGED_IN, Other.LOGIN_TIMEOUT): Reaction(ServerAnswer.NOTHING, None, _LOGGED_IN),
}
# All other inputs of a state.
_RULE: Final = {
    _CONNECTED: _NOT_LOGGED_IN,
    _LOGGED_IN: _UNSUPPORTED,
    _CLOSING: Reaction(ServerAnswer.NOTHING, None, _CLOSING),
}

TABLE: Final[Mapping[tuple[ConnectionState, Trigger], Reaction]] = {
    (state, trigger): _EXCEPTIONS.get((state, trigger), _RULE[state])
    for state in ConnectionState
    for trigger in (*Kind, *Other)
}

_ACTIVITY: Final[Mapping[int, bool]] = {kind: TABLE[_LOGGED_IN, kind].activity for kind in Kind}
_ACTIVITY_OF_UNKNOWN: Final = TABLE[_LOGGED_IN, Other.UNKNOWN].activity


def is_activity(kind: int) -> bool:
    """Whether a packet of this kind, which may be unknown, resets the idle time-out of its session."""
    return _ACTIVITY.get(kind, _ACTIVITY_OF_UNKNOWN)
