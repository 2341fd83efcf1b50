"""Whether a shard answers, and when to ask it again: pure.

Shards may be on several servers, of which one is away while the others work.
"""

import math
from typing import Final

from presence.common.backoff import backoff_s

MIN_OUTAGE_S: Final = 1.0  # shorter ones put nobody's logins behind another's ends
SLOW_CALL_S: Final = 0.5  # far above what a network or a script of ours takes: the server hung
IDLE_GAP_S: Final = (
    3.5  # longer than a probe keeps anybody waiting: this node was stopped, and noticed nothing
)
FRESH_S: Final = 0.4  # so long after an answer it may be taken for granted that the server is there
# After the first answer in a while ends wait so long: if the server has just hung, unnoticed here at rest,
# logins that waited elsewhere are on their way. Far below FRESH_S, so that nothing is asked twice.
SETTLE_DELAY_S: Final = 0.15
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LIMIT_S: Final = 1.0  # the outbox has to be empty within 5 s of Redis' answering
# At first pauses stay short: who did not notice a short outage would tell before what waits here. Until then
# every node at rest has asked, and noticed.
BRIEF_OUTAGE_S: Final = 2.5
BACKOFF_BRIEF_S: Final = 0.1


class CircuitBreaker:
    """How one shard has answered; moments are monotonic seconds.

    Attributes:
        away_since: when it began to fail; None while all is well.
        answered_at: when it answered last.
        sure_at: from when on what others had to tell before an answer has arrived.
        retry_at: when it may be asked again after a failure.
    """

    def __init__(self) -> None:
        self.unavailable_since: float | None = None
        self.answered_at = self.settled_at = self.retry_at = -math.inf
        self._failures = 0  # in a row
        self._took_s = 0.0  # of the last answer
        self._answers_again = False

    def is_fresh(self, now: float) -> bool:
        """Whether it has just answered."""
        return now - self.answered_at < FRESH_S

    @property
    def is_available(self) -> bool:
        """Whether all is well, or it has answered a probe since it failed."""
        return self.unavailable_since is None or self._answers_again

    def is_due(self, now: float) -> bool:
        """Whether it is away and to be asked now."""
        return not self.is_available and now >= self.retry_at

    def record_failure(self, sent_at: float, now: float, share: float, *, held_up: bool = False) -> None:
        """It failed.

        Args:
            sent_at, now: when the call was sent, and when it had failed.
            share: of the longest pause, from 0 to 1, that is to pass.
            held_up: whether others were held up by the call: they are to have their turn first.
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
        """It answered, which after a failure does not mean yet that all is well.

        Returns:
            Whether it was, or may have been, away for longer than a moment: calls failed, this one took much
            longer than the last one, or it was not asked for so long that this node must have been stopped.
            Then others may have something to tell that waited, as it may have waited here.
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
        """What there was to send was taken; return whether it has come back with this."""
        if not self._answers_again:
            return False
        self.unavailable_since, self._failures, self._answers_again = None, 0, False
        return True
