"""What happens to a session, as it travels from the core to Redis.

A change concerns a *session*. Whether it is a transition of the *user* (the first session came, the
last one went) is decided by the store's script, because only Redis sees the sessions of all nodes.
"""

from enum import Enum
from typing import NamedTuple


class Op(Enum):
    """Kinds of change, named as in the store script."""

    LOGIN = "login"
    END = "end"
    REGISTER = "register"
    RECLAIM = "reclaim"  # a registration where Redis went back: what it has may have ended
    HOLD = "hold"  # a login that waits behind an end: of a session that lives, and is told of later
    UNHEARD = "unheard"  # a session too silent to be registered, for which nobody vouches; never sent


class SessionName(NamedTuple):
    """A session by all that names it."""

    uid: str
    device: str
    session: str


class Change(NamedTuple):
    """One change of one session.

    Attributes:
        op: what happened.
        uid: the user.
        device: the user's device; ``""`` is the one default device.
        session: the session's id, unique over all nodes and time.
        code: reason code: 1 for a login, 2 for a registration, the reason of the end for an end.
        at: monotonic time in seconds. Of a login or a registration: when the login arrived (its age is what
            travels to Redis, never a clock reading). Of an end: the moment of the decision.
        at_ms: Unix milliseconds of the decision, as the event will show it.
        last_seen_ms: Unix milliseconds of the session's last valid frame.
        idle_timeout_ms: the session's own idle time-out, which a sweep by another node must wait for.
    """

    op: Op
    uid: str
    device: str
    session: str
    code: int
    at: float
    at_ms: int
    last_seen_ms: int
    idle_timeout_ms: int
