"""When a session may end, and when a user may be told to be offline: the rules `early` and `false`."""

from __future__ import annotations

import math
from typing import NamedTuple

from presence.protocol import Code

EPSILON_S = 0.002  # times travel in whole milliseconds


class Given(NamedTuple):
    """What a session's client had given as a reason when its session was ended.

    Attributes:
        silent_s: seconds since its last packet was readable.
        closed_s: seconds since its end of the connection was; None: it was open.
        has_logged_out: whether its logout was readable.
        has_successor: whether its device has logged in more than once.
    """

    silent_s: float
    closed_s: float | None
    has_logged_out: bool
    has_successor: bool


class Promised(NamedTuple):
    """What a session was promised, in seconds: its time-out, and the grace after a lost connection."""

    idle_timeout: float
    grace: float


def is_justified(code: int, given: Given, promised: Promised) -> bool:
    """Whether a node may have ended a session for that reason at that moment."""
    is_silent = given.silent_s >= promised.idle_timeout - EPSILON_S
    match code:
        case Code.IDLE_TIMEOUT:
            return is_silent
        case Code.CLOSED:
            return is_silent or (given.closed_s is not None and given.closed_s >= promised.grace - EPSILON_S)
        case Code.LOGOUT:
            return given.has_logged_out
        case Code.REPLACED:
            return given.has_successor
    return False


class Claim(NamedTuple):
    """What speaks for a session of a user at an offline event; moments in seconds on one clock.

    Attributes:
        entered: when its login was granted, at the latest; an end that was decided before goes before it.
        known_from: from when on Redis has to know of it.
        lives_until: until when it surely lives.
    """

    logged_in_at: float
    known_from: float
    alive_until: float


NO_CLAIM = Claim(math.inf, math.inf, -math.inf)


def is_false_offline(claim: Claim, decided: float, told: float) -> bool:
    """Whether an offline event, decided and reported no earlier than that, is false."""
    return claim.logged_in_at < decided and claim.known_from <= told < claim.alive_until
