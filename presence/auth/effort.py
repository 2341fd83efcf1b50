"""How much of a processor checking tokens may take: a budget of seconds, not of tokens, for they differ.

Whoever forges tokens costs us a check each. Beyond the budget a token is not checked, and its sender is told
when to come back. What is left of the budget goes to those who have more to lose: the last quarter is for
clients that are logged in and send a fresh token, the quarter before it for logins from addresses that have
not been guessing. So a flood of forged logins starves neither of them.
"""

from enum import Enum
from typing import Final

from presence.admission import RETRY_MIN_S, spread

# At once: as many logins as `login_burst` lets in by default, each checked with the dearest algorithm.
BURST_S: Final = 4.0


class Caller(Enum):
    """Who asks for a check; the value is the share of `BURST_S` that is kept from him."""

    CONNECTED = 0.0
    STRANGER = 0.25
    GUESSER = 0.5


class Effort:
    """The budget of one process.

    Args:
        share: seconds of processor time a second, in the long run.
        now: monotonic seconds.

    Attributes:
        refused: how often there was not enough, since the start.
    """

    def __init__(self, share: float, now: float) -> None:
        self._share = share
        self._left_s = BURST_S
        self._owed_s = 0.0  # of those that were refused, and still to be spent
        self._at = now
        self.refused = 0

    def take(self, cost_s: float, caller: Caller, now: float) -> bool:
        """Spend `cost_s` seconds, if they are there for this caller."""
        gained_s = (now - self._at) * self._share
        self._at = now
        self._left_s = min(BURST_S, self._left_s + gained_s)
        self._owed_s = max(0.0, self._owed_s - gained_s)
        if self._left_s - cost_s >= BURST_S * caller.value:
            self._left_s -= cost_s
            return True
        self.refused += 1
        self._owed_s += cost_s
        return False

    def retry_after(self) -> float:
        """Return seconds for the one that was just refused, spread over the time that all of them need."""
        window_s = max(RETRY_MIN_S, 2 * self._owed_s / self._share)
        return spread(RETRY_MIN_S, RETRY_MIN_S + window_s)
