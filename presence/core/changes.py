"""Changes of sessions, on their way from the engine to Redis.

A change concerns a *session*. Whether it is a transition of the *user* (first session started, last one
ended) is decided by the store's script, because only Redis sees the sessions of all nodes.

Tests: `tests/core/test_engine_model.py`, `tests/store/test_rules.py`.
"""

from enum import Enum
from typing import NamedTuple, Protocol

from presence.core.profiles import PLAIN, PrivacyChange, Profile


class Op(Enum):
    """Kinds of change; but for `STALE`, which is never sent, the values are those of apply.lua."""

    LOGIN = "login"
    END = "end"
    REGISTER = "register"
    RECLAIM = "reclaim"  # a registration after Redis lost data, whose records may be outdated
    UPDATE = "update"  # a live session has another profile
    PENDING_LOGIN = "hold"  # announces a login that is held back behind an end and sent later
    STALE = "unheard"  # a session without recent packets, which must not be registered; never sent


class SessionName(NamedTuple):
    """A session's full name: user, device and session id."""

    uid: str
    device: str
    session: str


class Change(NamedTuple):
    """One change of one session."""

    op: Op
    uid: str  # the user
    device: str  # the user's device; ``""`` is the one default device
    session: str  # the session's id, unique over all nodes and restarts
    code: int  # reason code: 1 for a login, 2 for a registration, the reason of the end for an end
    # monotonic seconds. Login or registration: when the login arrived (Redis is sent its age, never a clock
    # reading). End: when it was decided.
    at: float
    at_ms: int  # Unix milliseconds of the decision, as in the event
    last_seen_ms: int  # Unix milliseconds of the session's last valid frame
    idle_timeout_ms: int  # the session's own idle time-out, which a sweep by another node must wait for
    profile: Profile = PLAIN  # what the session shows from now on; not used for an end
    grace_ms: int = 0  # of an end after a lost connection: the grace, if flap damping extended it; else 0
    privacy: PrivacyChange = ""  # of an update. It is sent once, and is no state: later ones of others count


class ChangeSink(Protocol):
    """Takes changes in order."""

    def append(self, change: Change) -> None:
        """Take one change; never waits."""
