"""When to beat and when to come back. Time and chance are arguments: ``chance()`` is uniform in [0, 1)."""

import math
from collections.abc import Callable

Chance = Callable[[], float]

BEAT_JITTER = 0.1  # a beat comes up to this share of the interval early, never late: lateness costs slack
BEAT_MIN_S = 0.02  # whatever a server dictates, a client is no flood
# Each beat asks. A server that stops is then noticed within two intervals, 0.8 of the idle time-out, so that
# a client whose path broke is back before it counts as offline. One of three would take four intervals.
ASK_EVERY = 1
RETURN_FIRST_S = 1.0
RETURN_MAX_S = 60.0
STABLE_S = 60.0  # so long online, and the next return is quick again


class Backoff:
    """Full jitter: the n-th return since the last stable time, n from 0, waits up to min(60, 2^n) s.

    The source of the idea: M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
    """

    __slots__ = ("_returns",)

    def __init__(self) -> None:
        self._returns = 0

    def next_s(self, chance: Chance, online_s: float = 0.0, retry_after_s: float | None = None) -> float:
        """Return how long to stay away, in seconds.

        Args:
            chance: see above.
            online_s: how long the connection that was lost had been logged in.
            retry_after_s: what the server asked for. The jitter comes on top, or all clients that were
                told the same would come at the same moment.
        """
        if online_s >= STABLE_S:
            self._returns = 0
        most_s = min(RETURN_MAX_S, RETURN_FIRST_S * 2.0 ** min(self._returns, 16))
        self._returns += 1
        return (retry_after_s or 0.0) + most_s * chance()


class Beats:
    """The beats of one logged-in connection, and whether the server is still there.

    The first beat comes at a random moment of the first interval, so that clients who came together do
    not beat together. The first of every `ask_every` beats asks for an answer: after one that asked,
    something must arrive within an interval, or the server is dead. A server that stops is therefore
    noticed at most ``ask_every + 1`` intervals later, and one interval after the first beat that it owes
    an answer.

    Args:
        interval_s: what the server dictates.
        ask_every: 1: each beat asks.
        now: when the login was answered.
        chance: see above.

    Attributes:
        next_at: when the next beat is due.
        dead_at: when the server counts as dead; infinite while no answer is due.
        asked: id of the beat whose answer is due.
        sent: beats so far.
        round_trip_s: of the last answered beat; None before.
    """

    __slots__ = (
        "_ask_every",
        "_asked_at",
        "_interval_s",
        "asked",
        "dead_at",
        "next_at",
        "round_trip_s",
        "sent",
    )

    def __init__(self, interval_s: float, ask_every: int, now: float, chance: Chance) -> None:
        self._interval_s = max(BEAT_MIN_S, interval_s)
        self._ask_every = ask_every
        self._asked_at = 0.0
        self.next_at = now + self._interval_s * chance()
        self.dead_at = math.inf
        self.asked: int | None = None
        self.sent = 0
        self.round_trip_s: float | None = None

    def beat(self, now: float, chance: Chance) -> bool:
        """Count a beat that is sent now; return whether it should carry an id.

        The next is due an interval from now: beats that were missed are not made up for.
        """
        asks = self.sent % self._ask_every == 0 and self.asked is None
        self.sent += 1
        self.next_at = now + self._interval_s * (1.0 - BEAT_JITTER * chance())
        return asks

    def ask(self, id: int, now: float) -> None:
        """The beat just counted carries this id."""
        self.asked = id
        self._asked_at = now
        self.dead_at = now + self._interval_s

    def heard(self, now: float) -> None:
        """Something arrived: whoever sends is alive, though the answer may stand behind other things."""
        if self.asked is not None:
            self.dead_at = now + self._interval_s

    def answered(self, now: float) -> None:
        """The answer to the beat that asked has come."""
        self.round_trip_s = now - self._asked_at
        self.asked = None
        self.dead_at = math.inf
