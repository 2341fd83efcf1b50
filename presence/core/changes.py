"""What happens to a session, as it travels from the core to Redis.

A change concerns a *session*. Whether it is a transition of the *user* (the first session came, the
last one went) is decided by the store's script, because only Redis sees the sessions of all nodes.
"""

from enum import Enum
from typing import NamedTuple, Protocol


class Op(Enum):
    """Kinds of change, named as in the store script."""

    LOGIN = "login"
    END = "end"
    REGISTER = "register"
    RECLAIM = "reclaim"  # a registration where Redis went back: what it has may have ended
    UPDATE = "update"  # a session that lives shows itself otherwise
    PENDING_LOGIN = "hold"  # a login that waits behind an end: of a session that lives, and is told of later
    STALE = "unheard"  # a session too silent to be registered, for which nobody vouches; never sent


class SessionName(NamedTuple):
    """A session by all that names it."""

    uid: str
    device: str
    session: str


class Profile(NamedTuple):
    """What others are shown of a session beside that it lives."""

    away: bool = False  # whether its user is not looking
    # JSON text of what the client says of itself; "" if nothing. Opaque from here to the readers.
    meta: str = ""


PLAIN = Profile()


class Change(NamedTuple):
    """One change of one session."""

    op: Op  # what happened
    uid: str  # the user
    device: str  # the user's device; ``""`` is the one default device
    session: str  # the session's id, unique over all nodes and time
    code: int  # reason code: 1 for a login, 2 for a registration, the reason of the end for an end
    # monotonic time in seconds. Of a login or a registration: when the login arrived (its age is what travels
    # to Redis, never a clock reading). Of an end: the moment of the decision.
    at: float
    at_ms: int  # Unix milliseconds of the decision, as the event will show it
    last_seen_ms: int  # Unix milliseconds of the session's last valid frame
    idle_timeout_ms: int  # the session's own idle time-out, which a sweep by another node must wait for
    profile: Profile = PLAIN  # as others are shown the session from now on; of an end it is not looked at
    grace_ms: int = 0  # of an end, the grace that the connection's loss had if that was lengthened; else 0


class ChangeSink(Protocol):
    """Where changes go."""

    def append(self, change: Change) -> None:
        """Take one change; never waits."""
