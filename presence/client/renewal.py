"""A fresh token before the present one ends, on one connection: when to ask for one, and what came of it."""

import math

import protocol
from presence.client.errors import PresenceError, RequestFailed, Unsupported
from presence.client.pacing import Backoff, Chance
from presence.client.session import Answer, Caused, Session
from presence.client.tokens import given, left_s
from protocol import Code

TOKEN_TIMEOUT_S = 30.0  # for whoever makes tokens
ANSWER_TIMEOUT_S = 10.0
RENEW_SHARE = 0.8  # of what is left of a token: the rest is for sources and servers that fail for a while
RENEW_JITTER = 0.1  # so much of it earlier at most: who logged in together does not renew together
RETRY_MIN_S = 1.0


class Renewal:
    """Keeps the token of a logged-in connection fresh, if it can be read when it ends.

    Args:
        session: the new connection.
        token: what it logged in with; None: nobody makes fresh ones.
        server_time_s: Unix seconds by the server's clock when the login was answered; None if not told.
        now: when that was.
        chance: see `presence.client.pacing`.

    Attributes:
        due: when `tick` is to be called; infinite while nothing is to be done.
        wanted: whether the source is to be asked now; `take` ends it, and some time without it.
    """

    __slots__ = (
        *("_backoff", "_chance", "_id", "_offset_s", "_refused", "_sent", "_session", "_token"),
        *("due", "wanted"),
    )

    def __init__(
        self,
        session: Session,
        token: str | None,
        server_time_s: float | None,
        now: float,
        chance: Chance,
    ) -> None:
        self._session = session
        self._chance = chance
        self._offset_s = None if server_time_s is None else server_time_s - now
        self._token = self._sent = ""
        self._refused = ""
        self._id: int | None = None
        self._backoff = Backoff()
        self.due = math.inf
        self.wanted = False
        if token is not None:
            self._hold(token, now)

    def tick(self, now: float) -> None:
        """Want a token if it is time; want none any more if the source has taken too long, until later."""
        if now < self.due:
            return
        if self.wanted:
            self._postpone(now)
        else:
            self.wanted, self.due = True, now + TOKEN_TIMEOUT_S

    def take(self, token: str | Exception, now: float) -> None:
        """Send the token that was wanted, unless it is none, or the server has it or has refused it."""
        self.wanted = False
        if token in (self._token, self._refused):
            self._postpone(now)
            return
        try:
            self._sent = given(token)
            self._id = self._session.request(protocol.update(token=self._sent), ANSWER_TIMEOUT_S, now)
        except Exception:
            self._postpone(now)
        else:
            self.due = math.inf

    def settle(self, caused: Caused, now: float) -> Caused:
        """Take out the answer to an own request, and do what it means."""
        if self._id is None:
            return caused
        rest: Caused = []
        for each in caused:
            if not isinstance(each, Answer) or each.id != self._id:
                rest.append(each)
            elif isinstance(each.result, PresenceError):
                self._not_granted(each.result, now)
            else:
                self._id = None
                left = self._left_s(self._sent, now)
                if left is not None and left <= 0:
                    self._offset_s = None  # tokens are judged by another clock, which was set meanwhile
                self._hold(self._sent, now)
        return rest

    def without_own(self, failed: Caused) -> Caused:
        """Take out the failure of an own request: the connection is gone, and the next login has a token."""
        return [each for each in failed if not (isinstance(each, Answer) and each.id == self._id)]

    def _left_s(self, token: str, now: float) -> float | None:
        return left_s(token, None if self._offset_s is None else now + self._offset_s)

    def _hold(self, token: str, now: float) -> None:
        """The server has taken this token."""
        self._token = token
        self._backoff = Backoff()
        left = self._left_s(token, now)
        if left is None:
            self.due = math.inf
        else:
            share = RENEW_SHARE - RENEW_JITTER * self._chance()
            self.due = now + max(RETRY_MIN_S, left * share)

    def _not_granted(self, error: PresenceError, now: float) -> None:
        self._id = None
        if isinstance(error, Unsupported):  # it checks no tokens
            self.due = math.inf
            return
        if isinstance(error, RequestFailed) and error.code == Code.AUTH_FAILED:
            self._refused = self._sent
        self._postpone(now, error.retry_after if isinstance(error, RequestFailed) else None)

    def _postpone(self, now: float, retry_after: float | None = None) -> None:
        self.wanted = False
        self.due = now + RETRY_MIN_S + self._backoff.next_s(self._chance, 0.0, retry_after)
