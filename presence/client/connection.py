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
from presence.client.session import ClientSession, Effects, Keepalives, Result
from presence.client.state import PersistentState, WatchedUsers
from presence.client.types import checked_token, remaining_lifetime_s
from presence.protocol import Code

TOKEN_TIMEOUT_S = 30.0  # for whoever makes tokens
ANSWER_TIMEOUT_S = 10.0
RENEW_SHARE = 0.8  # of what is left of a token: the rest is for sources and servers that fail for a while
RENEW_JITTER = 0.1  # so much of it earlier at most: who logged in together does not renew together
MIN_RENEWAL_DELAY_S = 1.0
MAX_WATCHES_IN_FLIGHT = 2  # watches under way: a server has few places for each client


class Resubscription:
    """The requests that a client makes by itself, until each is granted or refused for good.

    A server that is busy, fails or does not answer is asked again, less and less often. `due_at` is when
    something is to be asked; infinite while nothing is.
    """

    def __init__(self, session: ClientSession, watches: WatchedUsers, now: float, chance: Chance) -> None:
        self._session = session
        self._watches = watches
        self._chance = chance
        self._backoff = Backoff()
        self._pending = deque(watches.batches())
        self._in_flight = 0
        self.due_at = now if self._pending else math.inf

    def add(self, uids: list[str], now: float) -> None:
        """Ask for some more, at once unless the server wants to be left alone for a while."""
        self._pending.append(uids)
        if self.due_at == math.inf:
            self._ask(now)

    def tick(self, now: float) -> None:
        """Ask, if it is time: for those who are still watched."""
        if now >= self.due_at:
            self.due_at = math.inf
            self._ask(now)

    def _ask(self, now: float) -> None:
        still = self._watches.states() if self._pending else {}
        while self._pending and self._in_flight < MAX_WATCHES_IN_FLIGHT:
            if uids := [uid for uid in self._pending.popleft() if uid in still]:
                on_answer = partial(self._answered, uids)
                self._session.request(protocol.watch(uids), ANSWER_TIMEOUT_S, now, on_answer=on_answer)
                self._in_flight += 1

    def _answered(self, uids: list[str], result: Result, now: float) -> Effects:
        self._in_flight -= 1
        effects: Effects = []
        if (
            isinstance(result, RequestFailed)
            and result.code in list(Code)
            and not Code(result.code).reconnect
        ):
            self._watches.remove(uids)
            effects.append(WatchEnded(tuple(uids), result.code, result.reason, result.message))
        elif isinstance(result, PresenceError):
            retry_after = result.retry_after if isinstance(result, RequestFailed) else None
            self._pending.append(uids)
            self.due_at = min(self.due_at, now + self._backoff.next_s(self._chance, 0.0, retry_after))
        if self.due_at == math.inf:
            self._ask(now)
        return effects


class Renewal:
    """Keeps the token of a logged-in connection fresh, if it can be read when it ends.

    Args:
        token: what it logged in with; None: nobody makes fresh ones.
        time_ms: the server's clock, Unix milliseconds, when the login was answered; None if not told.

    Attributes:
        due_at: when `tick` is to be called; infinite while nothing is to be done.
        wanted: whether the source is to be asked now; `offer_token` ends it, and some time without it.
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
        self.due_at = math.inf
        self.wanted = False
        if token is not None:
            self._token_accepted(token, now)

    def tick(self, now: float) -> None:
        """Want a token if it is time; want none any more if the source has taken too long, until later."""
        if now < self.due_at:
            return
        if self.wanted:
            self._postpone(now)
        else:
            self.wanted, self.due_at = True, now + TOKEN_TIMEOUT_S

    def offer_token(self, token: str | Exception, now: float) -> None:
        """Send the token that was wanted, unless it is none, or the server has it or has refused it."""
        self.wanted = False
        if token in (self._token, self._refused):
            self._postpone(now)
            return
        try:
            self._sent = checked_token(token)
            update = protocol.update(token=self._sent)
            self._session.request(update, ANSWER_TIMEOUT_S, now, on_answer=self._answered)
        except Exception:
            self._postpone(now)
        else:
            self.due_at = math.inf

    def _remaining_lifetime_s(self, token: str, now: float) -> float | None:
        return remaining_lifetime_s(token, None if self._offset_s is None else now + self._offset_s)

    def _token_accepted(self, token: str, now: float) -> None:
        """The server has taken this token."""
        self._token = token
        self._backoff = Backoff()
        left_s = self._remaining_lifetime_s(token, now)
        if left_s is None:
            self.due_at = math.inf
        else:
            share = RENEW_SHARE - RENEW_JITTER * self._chance()
            self.due_at = now + max(MIN_RENEWAL_DELAY_S, left_s * share)

    def _answered(self, result: Result, now: float) -> Effects:
        if isinstance(result, Unsupported):  # it checks no tokens
            self.due_at = math.inf
        elif isinstance(result, PresenceError):
            if isinstance(result, RequestFailed) and result.code == Code.AUTH_FAILED:
                self._refused = self._sent
            self._postpone(now, result.retry_after if isinstance(result, RequestFailed) else None)
        else:
            left_s = self._remaining_lifetime_s(self._sent, now)
            if left_s is not None and left_s <= 0:
                self._offset_s = None  # tokens are judged by another clock, which was set meanwhile
            self._token_accepted(self._sent, now)
        return []

    def _postpone(self, now: float, retry_after: float | None = None) -> None:
        self.wanted = False
        self.due_at = now + MIN_RENEWAL_DELAY_S + self._backoff.next_s(self._chance, 0.0, retry_after)


class Connection(ClientSession):
    """A session that watches again the users watched before it. See `ClientSession`, `Renewal`."""

    def __init__(
        self,
        keepalives: Keepalives,
        now: float,
        ids: Iterator[int],
        outgoing: bytearray,
        persistent_state: PersistentState,
        *,
        token: str | None,
        time_ms: int | None,
        chance: Chance,
    ) -> None:
        super().__init__(keepalives, now, ids, outgoing, persistent_state)
        self.resubscription = Resubscription(self, persistent_state.watches, now, chance)
        self.renewal = Renewal(self, token, time_ms, now, chance)
        self.resubscription.tick(now)

    @property
    def deadline(self) -> float:
        """When `tick`, or a beat, is due."""
        return min(super().deadline, self.resubscription.due_at, self.renewal.due_at)

    def tick(self, now: float) -> Effects:
        """Give up requests whose time is over, and ask for what is due."""
        effects = self.expire_requests(now)
        self.resubscription.tick(now)
        self.renewal.tick(now)
        return effects
