"""Whether and when a client reconnects after a connection that was lost or could not be made.

Time and randomness are arguments: ``chance()`` is uniform in [0, 1).

Tests: `tests/client/test_state_machine.py`, `tests/client/test_machine_model.py`.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

from presence.client.errors import LoginRefused, PresenceError, Unreachable
from presence.protocol import Code

Chance = Callable[[], float]

RECONNECT_FIRST_S = 1.0
RECONNECT_MAX_S = 60.0
# After this long online the next reconnect is quick again. A phone that changes its network once a minute
# must not wait longer each time; one whose sessions end at once must.
STABLE_S = 10.0


class Backoff:
    """Full jitter: the n-th attempt since the last stable connection, n from 0, waits up to min(60, 2^n) s.

    The source of the idea: M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
    """

    def __init__(self) -> None:
        self._attempts = 0

    def next_s(self, chance: Chance, online_s: float = 0.0, retry_after_s: float | None = None) -> float:
        """Return the seconds to wait after a connection that had been logged in for `online_s` seconds.

        The jitter is added to the server's `retry_after`: otherwise all clients given the same value would
        return at the same moment.
        """
        if online_s >= STABLE_S:
            self._attempts = 0
        max_s = min(RECONNECT_MAX_S, RECONNECT_FIRST_S * 2.0 ** min(self._attempts, 16))
        self._attempts += 1
        return (retry_after_s or 0.0) + max_s * chance()


class Loss(NamedTuple):
    """Why a connection was lost or could not be made; see `Disconnected`."""

    reason: str
    message: str
    code: int | None = None
    retry_after: float | None = None  # seconds that the server asked for; None if it did not
    failure: PresenceError | None = None  # to raise if the first attempt must succeed; None: `Unreachable`

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> Self:
        """Return the loss that an error or goodbye payload describes; its failure is a refused login."""
        code, reason, message = payload["code"], payload["reason"], payload.get("message", "")
        retry_after = payload.get("retry_after")
        return cls(reason, message, code, retry_after, LoginRefused(code, reason, message, retry_after))


class ReconnectPolicy:
    """Decides after each loss whether the client reconnects, and counts attempts.

    `server`: its address, for people. `persistent`: whether a failed first attempt is repeated like any later
    one.
    """

    def __init__(
        self, server: str = "the server", *, persistent: bool = True, chance: Chance = random.random
    ) -> None:
        self._server = server
        self._persistent = persistent
        self._chance = chance
        self._backoff = Backoff()
        self.logins = 0  # how often it came online
        self.losses = 0  # how often a connection was lost or could not be made

    def login_granted(self) -> None:
        self.logins += 1

    def connection_lost(self, loss: Loss, online_s: float) -> float | PresenceError:
        """Count the loss; return the seconds to wait, or the error that ends the client.

        `online_s`: for how long the connection had been logged in.
        """
        self.losses += 1
        if not (self._persistent or self.logins):
            return loss.failure or Unreachable(self._server, loss.message or loss.reason)
        return self._backoff.next_s(self._chance, online_s, loss.retry_after)

    def token_refused(self, loss: Loss) -> float:
        """Count the refusal of a token, after which another is tried; return the seconds to wait."""
        self.losses += 1
        return self._backoff.next_s(self._chance, 0.0, loss.retry_after)

    def login_refused(self, loss: Loss, reconnect: bool | None) -> float | PresenceError:
        """Return the seconds to wait after a refused login, or the error that ends the client.

        `reconnect` is whether the server allows the client to return; None: the code decides, and an unknown
        code allows it.
        """
        if reconnect is None:
            reconnect = loss.code not in list(Code) or Code(loss.code).allows_return(loss.retry_after)
        if not reconnect and loss.failure is not None:
            return loss.failure
        return self.connection_lost(loss, 0.0)
