"""Numbers of protocol version 1: kinds, reason codes and limits.

Tests: `tests/protocol/test_spec.py`.
"""

from enum import IntEnum
from functools import cached_property
from typing import Final, Literal

VERSION: Final = 1


class Kind(IntEnum):
    """Kinds of packets: below 64 from the client, from 64 on from the server."""

    LOGIN = 1
    MESSAGE = 2
    KEEPALIVE = 3
    LOGOUT = 4
    QUERY = 5
    WATCH = 6
    UNWATCH = 7
    UPDATE = 8
    OK = 64
    ERROR = 65
    PRESENCE = 66
    DELIVER = 67
    GOODBYE = 68
    CHANGES = 69
    ROOMS = 70


class Code(IntEnum):
    """Reason codes, one table for errors, goodbyes and events."""

    LOGIN = 1
    RETURNED = 2
    AWAY = 3
    BACK = 4
    UPDATED = 5
    WATCHED = 6
    REMOVED = 7
    ROOMS = 8
    LOGOUT = 100
    BACKGROUND = 101
    CLOSED = 200
    IDLE_TIMEOUT = 201
    SLOW_CONSUMER = 202
    REPLACED = 300
    KICKED = 301
    AUTH_EXPIRED = 302
    AUTH_FAILED = 303
    SESSION_LIMIT = 304
    BANNED = 305
    PROTOCOL_ERROR = 310
    RATE_LIMITED = 311
    LOGIN_TIMEOUT = 312
    UNSUPPORTED = 313
    RECIPIENT_OFFLINE = 314
    TOO_LARGE = 315
    NOT_LOGGED_IN = 316
    RECIPIENT_DISCONNECTED = 317
    NOT_ALLOWED = 318
    SERVER_DRAIN = 400
    SERVER_RESTART = 401
    NODE_DOWN = 402
    SERVER_ERROR = 403
    BUSY = 404

    @cached_property
    def reason(self) -> str:
        """The code's name on the wire and in events, for example ``idle_timeout``."""
        return self.name.lower()

    @property
    def reconnect(self) -> bool:
        """Whether a client may always reconnect automatically after its connection ended with this code."""
        return self in _RECONNECT

    def allows_return(self, retry_after: float | None) -> bool:
        """Whether a client may reconnect automatically, after `retry_after` seconds if they are given.

        After some codes it may only if they are: a ban may have no end, and a session that had to go for a
        newer one must not come back and displace that.
        """
        return self in _RECONNECT or (self in _RECONNECT_IF_TOLD_WHEN and retry_after is not None)


Status = Literal["online", "away", "busy", "dnd", "invisible"]
Scope = Literal["session", "user"]
"""What a status belongs to: the session that sets it, or its user."""

HIDES: Final = ("last_seen",)
"""What users can hide from each other, beside their presence."""

STATUSES: Final[tuple[Status, ...]] = ("invisible", "dnd", "busy", "online", "away")
"""Of a user with several sessions, the first of these that one of them has is shown.

Clients are shown an invisible user as offline, and the application's backend as online and invisible.
"""

_RECONNECT: Final = frozenset(
    {
        Code.CLOSED,
        Code.IDLE_TIMEOUT,
        Code.SLOW_CONSUMER,
        Code.AUTH_EXPIRED,
        Code.RATE_LIMITED,
        Code.LOGIN_TIMEOUT,
        Code.RECIPIENT_DISCONNECTED,
        Code.SERVER_DRAIN,
        Code.SERVER_RESTART,
        Code.NODE_DOWN,
        Code.SERVER_ERROR,
        Code.BUSY,
    }
)

_RECONNECT_IF_TOLD_WHEN: Final = frozenset({Code.BANNED, Code.SESSION_LIMIT})

# Frames: the length N, without the four bytes that carry it.
FRAME_LIMIT_BEFORE_LOGIN_BYTES: Final = 1024  # a login fits; unauthenticated clients get no more memory
FRAME_LIMIT_BYTES: Final = 16 * 1024  # 500 uids of 30 bytes fit; 100k clients cannot hold 100k large buffers
SERVER_FRAME_LIMIT_BYTES: Final = 256 * 1024  # 500 states with long uids and full meta fit

UIDS_MAX: Final = 500  # bounds the work that one packet causes
UID_MAX_BYTES: Final = 128  # a UUID, an e-mail address or a hashed id fits; it becomes part of Redis keys
DEVICE_MAX_BYTES: Final = 64  # a UUID or a vendor's installation id fits
CLASS_MAX_BYTES: Final = 32  # of a device: phone, desktop, web
ROOM_MAX_BYTES: Final = 64  # a UUID with a word before it fits; it becomes part of Redis keys
ROOMS_MAX: Final = 16  # of a session: their names are in its record and in each of the user's events
WATCHED_ROOMS_MAX: Final = 64  # of a request and of a connection: more than one page of an app shows
NAMES_MAX: Final = 8  # in a list of them: more than there are things to hide
META_MAX_BYTES: Final = 256  # packed; kept in memory per session, and sent with each state
META_TEXT_MAX_BYTES: Final = 512  # as JSON text, in which it lies in Redis, and in each of the user's events
META_DEPTH_MAX: Final = 8  # meta itself counted as the first; an answer to a query nests it three deep
TOKEN_MAX_BYTES: Final = 768  # fits into a login frame of 1 KiB with the longest uid and device
CONFIRM_MAX_S: Final = 30  # for a person who waits; each message that waits takes memory
PASS_MAX_BYTES: Final = 4096  # some hundred uids fit; given after the login, so in a frame of 16 KiB
DEPTH_MAX: Final = 12  # nested containers, the payload counted as the first; JSON APIs rarely exceed 8
