"""A circuit breaker: whether a shard is available, and when to retry it; pure, time is an argument.

Shards may be on several servers, so that one is unreachable while the others work.
"""

import math
from typing import Final

from presence.common.backoff import backoff_s

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LIMIT_S: Final = 1.0  # the outbox has to be empty within 5 s after Redis recovers
# Pauses stay short for this time: a node that did not notice a short outage would send its changes before
# those pending here. After it, every idle node has probed, and noticed.
BRIEF_OUTAGE_S: Final = 2.5
BACKOFF_BRIEF_S: Final = 0.1


class CircuitBreaker:
    """The availability of one shard; times are monotonic seconds.

    Attributes:
        unavailable_since: when the first call failed; None while it works.
        retry_at: when it may be tried again after a failure.
    """

    def __init__(self) -> None:
        self.unavailable_since: float | None = None
        self.retry_at = -math.inf
        self._failures = 0  # consecutive
        self._answers_again = False  # after a failure, not confirmed yet

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

    def record_answer(self) -> None:
        """Record an answer; after failures, `confirm_recovery` has to follow."""
        self._answers_again = self.unavailable_since is not None

    def confirm_recovery(self) -> bool:
        """Close the breaker after a round in which all was sent; return whether it was open."""
        if not self._answers_again:
            return False
        self.unavailable_since, self._failures, self._answers_again = None, 0, False
        return True
