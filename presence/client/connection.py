"""A logged-in connection as a whole: the session, and what the client asks for on it by itself.

That is fresh tokens, and watches: anew after a return, and those that nobody waits for.
"""

import math
from collections import deque
from collections.abc import Iterator
from functools import partial

from presence import protocol
from presence.client.errors import PresenceError, RequestFailed, Unsupported
from presence.client.pushes import WatchEnded
from presence.client.reconnect import Backoff, Chance
from presence.client.session import Beats, Caused, ClientSession, Result
from presence.client.state import Lasting, WatchedUsers
from presence.client.types import given, left_s
from presence.protocol import Code

TOKEN_TIMEOUT_S = 30.0  # for whoever makes tokens
ANSWER_TIMEOUT_S = 10.0
RENEW_SHARE = 0.8  # of what is left of a token: the rest is for sources and servers that fail for a while
RENEW_JITTER = 0.1  # so much of it earlier at most: who logged in together does not renew together
RETRY_MIN_S = 1.0
AT_ONCE = 2  # watches under way: a server has few places for each client


class Rewatching:
    """The requests that a client makes by itself, until each is granted or refused for good.

    A server that is busy, fails or does not answer is asked again, less and less often. `due` is when
    something is to be asked; infinite while nothing is.
    """

    def __init__(self, session: ClientSession, watches: WatchedUsers, now: float, chance: Chance) -> None:
        self._session = session
        self._watches = watches
        self._chance = chance
        self._backoff = Backoff()
        self._waiting = deque(watches.batches())
        self._under_way = 0
        self.due = now if self._waiting else math.inf

    def add(self, uids: list[str], now: float) -> None:
        """Ask for some more, at once unless the server wants to be left alone for a while."""
        self._waiting.append(uids)
        if self.due == math.inf:
            self._ask(now)

    def tick(self, now: float) -> None:
        """Ask, if it is time: for those who are still watched."""
        if now >= self.due:
            self.due = math.inf
            self._ask(now)

    def _ask(self, now: float) -> None:
        still = self._watches.states() if self._waiting else {}
        while self._waiting and self._under_way < AT_ONCE:
            if uids := [uid for uid in self._waiting.popleft() if uid in still]:
                done = partial(self._answered, uids)
                self._session.request(protocol.watch(uids), ANSWER_TIMEOUT_S, now, done=done)
                self._under_way += 1

    def _answered(self, uids: list[str], result: Result, now: float) -> Caused:
        self._under_way -= 1
        caused: Caused = []
        if (
            isinstance(result, RequestFailed)
            and result.code in list(Code)
            and not Code(result.code).reconnect
        ):
            self._watches.forget(uids)
            caused.append(WatchEnded(tuple(uids), result.code, result.reason, result.message))
        elif isinstance(result, PresenceError):
            retry_after = result.retry_after if isinstance(result, RequestFailed) else None
            self._waiting.append(uids)
            self.due = min(self.due, now + self._backoff.next_s(self._chance, 0.0, retry_after))
        if self.due == math.inf:
            self._ask(now)
        return caused


class Renewal:
    """Keeps the token of a logged-in connection fresh, if it can be read when it ends.

    Args:
        token: what it logged in with; None: nobody makes fresh ones.
        time_ms: the server's clock, Unix milliseconds, when the login was answered; None if not told.

    Attributes:
        due: when `tick` is to be called; infinite while nothing is to be done.
        wanted: whether the source is to be asked now; `take` ends it, and some time without it.
    """

    def __init__(
        self, session: ClientSession, token: str | None, time_ms: int | None, now: float, chance: Chance
    ) -> None:
        self._session = session
        self._chance = chance
        self._offset_s = None if time_ms is None else time_ms / 1000 - now
        self._token = self._sent = ""
        self._refused = ""
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
            update = protocol.update(token=self._sent)
            self._session.request(update, ANSWER_TIMEOUT_S, now, done=self._answered)
        except Exception:
            self._postpone(now)
        else:
            self.due = math.inf

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

    def _answered(self, result: Result, now: float) -> Caused:
        if isinstance(result, Unsupported):  # it checks no tokens
            self.due = math.inf
        elif isinstance(result, PresenceError):
            if isinstance(result, RequestFailed) and result.code == Code.AUTH_FAILED:
                self._refused = self._sent
            self._postpone(now, result.retry_after if isinstance(result, RequestFailed) else None)
        else:
            left = self._left_s(self._sent, now)
            if left is not None and left <= 0:
                self._offset_s = None  # tokens are judged by another clock, which was set meanwhile
            self._hold(self._sent, now)
        return []

    def _postpone(self, now: float, retry_after: float | None = None) -> None:
        self.wanted = False
        self.due = now + RETRY_MIN_S + self._backoff.next_s(self._chance, 0.0, retry_after)


class Connection(ClientSession):
    """A session that watches again the users watched before it. See `ClientSession`, `Renewal`."""

    def __init__(
        self,
        beats: Beats,
        now: float,
        ids: Iterator[int],
        outgoing: bytearray,
        lasting: Lasting,
        *,
        token: str | None,
        time_ms: int | None,
        chance: Chance,
    ) -> None:
        super().__init__(beats, now, ids, outgoing, lasting)
        self.rewatching = Rewatching(self, lasting.watches, now, chance)
        self.renewal = Renewal(self, token, time_ms, now, chance)
        self.rewatching.tick(now)

    @property
    def deadline(self) -> float:
        """When `tick`, or a beat, is due."""
        return min(super().deadline, self.rewatching.due, self.renewal.due)

    def tick(self, now: float) -> Caused:
        """Give up requests whose time is over, and ask for what is due."""
        caused = self.expire(now)
        self.rewatching.tick(now)
        self.renewal.tick(now)
        return caused
