"""A logged-in connection: the session, and the requests that the client makes on it by itself.

These are token renewals, and watches: repeated after a reconnect, or requested without waiting.
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
from presence.client.state import PersistentState
from presence.client.tokens import checked_token, remaining_lifetime_s
from presence.protocol import Code

TOKEN_TIMEOUT_S = 30.0  # for the program's token function
ANSWER_TIMEOUT_S = 10.0
RENEW_SHARE = 0.8  # of a token's remaining lifetime; the rest is for failing sources and servers
RENEW_JITTER = 0.1  # up to this share earlier: clients that logged in together do not renew together
MIN_RENEWAL_DELAY_S = 1.0
MAX_WATCHES_IN_FLIGHT = 2  # a server allows few pending requests per client


class Resubscription:
    """Watch requests of the client itself, repeated until each is granted or refused for good.

    A server that is busy, fails or does not answer is asked again with growing pauses. `due_at` is when the
    next request is due; infinite if none is.
    """

    def __init__(self, session: ClientSession, state: PersistentState, now: float, chance: Chance) -> None:
        self._session = session
        self._state = state
        self._watches = state.watches
        self._chance = chance
        self._backoff = Backoff()
        self._pending = deque(self._watches.batches())
        self._in_flight = 0
        self.due_at = now if self._pending else math.inf

    def add(self, uids: list[str], now: float) -> None:
        """Request more watches, immediately unless the server has asked for a pause."""
        self._pending.append(uids)
        if self.due_at == math.inf:
            self._ask(now)

    def tick(self, now: float) -> None:
        """Send due requests, for users who are still watched."""
        if now >= self.due_at:
            self.due_at = math.inf
            self._ask(now)

    def _ask(self, now: float) -> None:
        still = self._watches.states() if self._pending else {}
        while self._pending and self._in_flight < MAX_WATCHES_IN_FLIGHT:
            if uids := [uid for uid in self._pending.popleft() if uid in still]:
                on_answer = partial(self._answered, uids)
                self._session.request(self._state.watch(uids), ANSWER_TIMEOUT_S, now, on_answer=on_answer)
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
    """Renews the token of a logged-in connection before it expires, if its expiry can be read.

    Args:
        token: the token of the login; None if the program has no token function.
        time_ms: the server's clock, Unix milliseconds, when the login was answered; None if unknown.

    Attributes:
        due_at: when to call `tick`; infinite while nothing is to be done.
        wanted: whether to ask the program for a token now; ended by `offer_token` or a time-out.
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
        """Ask for a token when it is time; postpone if the program takes too long."""
        if now < self.due_at:
            return
        if self.wanted:
            self._postpone(now)
        else:
            self.wanted, self.due_at = True, now + TOKEN_TIMEOUT_S

    def offer_token(self, token: str | Exception, now: float) -> None:
        """Send the token, unless it is invalid, or the server has it or has refused it."""
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
        """The server has accepted this token."""
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
                self._offset_s = None  # the clock that tokens are checked by was set meanwhile
            self._token_accepted(self._sent, now)
        return []

    def _postpone(self, now: float, retry_after: float | None = None) -> None:
        self.wanted = False
        self.due_at = now + MIN_RENEWAL_DELAY_S + self._backoff.next_s(self._chance, 0.0, retry_after)


class Connection(ClientSession):
    """A `ClientSession` that restores the watches of earlier connections and renews its token."""

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
        self.resubscription = Resubscription(self, persistent_state, now, chance)
        self.renewal = Renewal(self, token, time_ms, now, chance)
        for text in persistent_state.passes:
            on_answer = partial(self._pass_answered, text)
            self.request(protocol.watch([], visibility_pass=text), ANSWER_TIMEOUT_S, now, on_answer=on_answer)
        self.resubscription.tick(now)

    @property
    def deadline(self) -> float:
        """When `tick` or a keepalive is due."""
        return min(super().deadline, self.resubscription.due_at, self.renewal.due_at)

    def sight_changed(self, now: float) -> None:
        """See `ClientSession`: ask again for the users who were hidden."""
        for uids in self._persistent_state.watches.hidden_batches():
            self.resubscription.add(uids, now)

    def _pass_answered(self, text: str, result: Result, _now: float) -> Effects:
        if isinstance(result, RequestFailed) and result.code == Code.AUTH_FAILED:  # it has expired
            self._persistent_state.passes.pop(text, None)
        return []

    def tick(self, now: float) -> Effects:
        """Time out requests, and send due watches and renewals."""
        effects = self.expire_requests(now)
        self.resubscription.tick(now)
        self.renewal.tick(now)
        return effects
