"""A circuit breaker: whether a shard is available, and when to retry it; pure, time is an argument.

Shards may be on several servers, so that one is unreachable while the others work.
"""

import math
from typing import Final

from presence.common.backoff import backoff_s

MIN_OUTAGE_S: Final = 1.0  # shorter outages do not let one node's ends overtake another's logins
SLOW_CALL_S: Final = 0.5  # far above the time of a network or a script: the server hung
IDLE_GAP_S: Final = 3.5  # longer than the time between two probes: this node was stopped, unnoticed
FRESH_S: Final = 0.4  # for this time after an answer, the server counts as available
# Ends wait this long after the first answer in a while: if the server has just hung, unnoticed by an idle
# node, logins that were pending on other nodes are on their way. Far below FRESH_S, so that no probe is
# repeated.
SETTLE_DELAY_S: Final = 0.15
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LIMIT_S: Final = 1.0  # the outbox has to be empty within 5 s after Redis recovers
# Pauses stay short for this time: a node that did not notice a short outage would send its changes before
# those pending here. After it, every idle node has probed, and noticed.
BRIEF_OUTAGE_S: Final = 2.5
BACKOFF_BRIEF_S: Final = 0.1


class CircuitBreaker:
    """The availability of one shard; times are monotonic seconds.

    Attributes:
        unavailable_since: when it began to fail; None while it works.
        answered_at: when it answered last.
        settled_at: from when on changes that were pending on other nodes have arrived.
        retry_at: when it may be tried again after a failure.
    """

    def __init__(self) -> None:
        self.unavailable_since: float | None = None
        self.answered_at = self.settled_at = self.retry_at = -math.inf
        self._failures = 0  # consecutive
        self._took_s = 0.0  # duration of the last call that was answered
        self._answers_again = False  # after a failure, not confirmed yet

    def is_fresh(self, now: float) -> bool:
        """Whether it has answered recently enough to count as available."""
        return now - self.answered_at < FRESH_S

    @property
    def is_available(self) -> bool:
        """Whether it works, or has answered a probe since it failed."""
        return self.unavailable_since is None or self._answers_again

    def is_due(self, now: float) -> bool:
        """Whether it is unavailable and a retry is due."""
        return not self.is_available and now >= self.retry_at

    def record_failure(self, sent_at: float, now: float, share: float, *, held_up: bool = False) -> None:
        """Record a failed call.

        Args:
            sent_at, now: when the call was sent, and when it had failed.
            share: the part of the full pause to wait, from 0 to 1.
            held_up: whether the call delayed other shards, which then get their turn before the retry.
        """
        if self.unavailable_since is None:
            self.unavailable_since = sent_at
        is_brief = now - self.unavailable_since < BRIEF_OUTAGE_S
        limit_s = BACKOFF_BRIEF_S if is_brief else BACKOFF_LIMIT_S
        pause_s = share * backoff_s(self._failures, BACKOFF_FIRST_S, limit_s)
        turn_s = min(BACKOFF_LIMIT_S, 2.0 * (now - sent_at)) if held_up else 0.0
        self.retry_at = now + max(pause_s, turn_s)
        self._failures = self._failures + 1 if not is_brief else min(self._failures + 1, 2)
        self._answers_again = False

    def record_success(self, sent_at: float, now: float) -> bool:
        """Record an answer; after failures, `confirm_recovery` has to follow.

        Returns:
            Whether there was, or may have been, an outage of some length: calls failed, this one took much
            longer than the last one, or there was none for so long that this node must have been stopped.
            Then other nodes may have pending changes, as this one may.
        """
        rested_s, took_s, took_before_s = sent_at - self.answered_at, now - sent_at, self._took_s
        if max(rested_s, took_s - took_before_s) >= FRESH_S:
            self.settled_at = now + SETTLE_DELAY_S
        before = (
            self.answered_at
            if self.unavailable_since is None
            else min(self.answered_at, self.unavailable_since)
        )
        self.answered_at, self._took_s = now, took_s
        self._answers_again = self.unavailable_since is not None
        hung = took_s >= SLOW_CALL_S and (
            took_before_s < SLOW_CALL_S or took_s - took_before_s >= MIN_OUTAGE_S
        )
        is_back = self.unavailable_since is not None or hung or IDLE_GAP_S <= rested_s < math.inf
        return is_back and now - before >= MIN_OUTAGE_S

    def confirm_recovery(self) -> bool:
        """Close the breaker after a round in which all was sent; return whether it was open."""
        if not self._answers_again:
            return False
        self.unavailable_since, self._failures, self._answers_again = None, 0, False
        return True
