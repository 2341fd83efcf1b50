"""A logged-in connection: the session, and the requests that the client makes on it by itself.

These renew the token, make the watches that the program requests without waiting, and after a reconnect
restore watches, passes and what the login could not carry.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from presence import protocol
from presence.client.errors import CodedError, PresenceError, RequestFailed, Unsupported
from presence.client.pushes import WatchEnded
from presence.client.reconnect import Backoff, Chance
from presence.client.session import ClientSession, Effects, Keepalives, Result
from presence.client.state import PersistentState
from presence.client.tokens import checked_token, remaining_lifetime_s
from presence.protocol import Code, Packet

TOKEN_TIMEOUT_S = 30.0  # for the program's token function
ANSWER_TIMEOUT_S = 10.0
RENEW_SHARE = 0.8  # of a token's remaining lifetime; the rest is for failing sources and servers
RENEW_JITTER = 0.1  # up to this share earlier: clients that logged in together do not renew together
MIN_RENEWAL_DELAY_S = 1.0
MAX_IN_FLIGHT = 2  # a server allows few pending requests per client
USERS_THAT_FIT = 32  # with their devices, into one answer: a refusal of so few is about the number of watches


class _Watches(NamedTuple):
    """Users to watch: again after a reconnect, or without waiting."""

    state: PersistentState
    uids: list[str]

    def current(self) -> "_Watches | None":
        """Return the same for those who are still watched; None if there are none."""
        uids = [uid for uid in self.uids if uid in self.state.watches]
        return self._replace(uids=uids) if uids else None

    def packet(self) -> Packet:
        return self.state.watch(self.uids)

    def refused(self, error: RequestFailed) -> tuple[Effects, list["_OwnRequest"]]:
        """Return what a refusal for good leads to, and what to request instead."""
        if error.code == Code.TOO_LARGE and self.state.watch_devices and len(self.uids) > USERS_THAT_FIT:
            half = len(self.uids) // 2  # the answer, with all devices, would not fit into a frame
            return [], [_Watches(self.state, self.uids[:half]), _Watches(self.state, self.uids[half:])]
        self.state.watches.remove(self.uids)
        return [WatchEnded(tuple(self.uids), error.code, error.reason, error.message)], []


class _Pass(NamedTuple):
    """A pass that an earlier connection had."""

    state: PersistentState
    text: str

    def current(self) -> "_Pass | None":
        return self if self.text in self.state.passes else None

    def packet(self) -> Packet:
        return protocol.watch([], visibility_pass=self.text)

    def refused(self, _error: RequestFailed) -> tuple[Effects, list["_OwnRequest"]]:
        self.state.passes.pop(self.text, None)
        return [], []


class _Rest(NamedTuple):
    """What the login had to leave out."""

    state: PersistentState

    def current(self) -> "_Rest | None":
        return self if self.state.rest() else None

    def packet(self) -> Packet:
        return self.state.rest() or protocol.update()

    def refused(self, _error: RequestFailed) -> tuple[Effects, list["_OwnRequest"]]:
        return [], []


_OwnRequest = _Watches | _Pass | _Rest


class OwnRequests:
    """Requests of the client itself, repeated until each is granted or refused for good.

    A server that is busy, fails or does not answer is asked again with growing pauses. `due_at` is when the
    next request is due; infinite if none is.
    """

    def __init__(
        self, session: ClientSession, requests: Iterable[_OwnRequest], now: float, chance: Chance
    ) -> None:
        self._session = session
        self._chance = chance
        self._backoff = Backoff()
        self._pending = deque(requests)
        self._in_flight = 0
        self.due_at = now if self._pending else math.inf

    def add(self, request: _OwnRequest, now: float) -> None:
        """Make another request, immediately unless the server has asked for a pause."""
        self._pending.append(request)
        if self.due_at == math.inf:
            self._ask(now)

    def tick(self, now: float) -> None:
        """Send due requests."""
        if now >= self.due_at:
            self.due_at = math.inf
            self._ask(now)

    def _ask(self, now: float) -> None:
        while self._pending and self._in_flight < MAX_IN_FLIGHT:
            if (request := self._pending.popleft().current()) is not None:
                on_answer = partial(self._answered, request)
                self._session.request(request.packet(), ANSWER_TIMEOUT_S, now, on_answer=on_answer)
                self._in_flight += 1

    def _answered(self, request: _OwnRequest, result: Result, now: float) -> Effects:
        self._in_flight -= 1
        effects: Effects = []
        if (
            isinstance(result, RequestFailed)
            and result.code in list(Code)
            and not Code(result.code).reconnect
        ):
            effects, instead = request.refused(result)
            self._pending.extendleft(reversed(instead))
        elif isinstance(result, PresenceError):
            retry_after = result.retry_after if isinstance(result, CodedError) else None
            self._pending.append(request)
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
            self._postpone(now, result.retry_after if isinstance(result, CodedError) else None)
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
        state = persistent_state
        server_s = None if time_ms is None else time_ms / 1000
        lifetimes = {text: remaining_lifetime_s(text, server_s) for text in state.passes}
        for text in [text for text, left_s in lifetimes.items() if left_s is not None and left_s <= 0]:
            del state.passes[text]
        restored: list[_OwnRequest] = [
            *([_Rest(state)] if state.rest() else []),
            *(_Pass(state, text) for text in state.passes),
            *(_Watches(state, uids) for uids in state.watches.batches()),
        ]
        self.own_requests = OwnRequests(self, restored, now, chance)
        self.renewal = Renewal(self, token, time_ms, now, chance)
        self.own_requests.tick(now)

    @property
    def deadline(self) -> float:
        """When `tick` or a keepalive is due."""
        return min(super().deadline, self.own_requests.due_at, self.renewal.due_at)

    def watch(self, uids: list[str], now: float) -> None:
        """Request watches, until they are granted or refused for good."""
        self.own_requests.add(_Watches(self._persistent_state, uids), now)

    def sight_changed(self, now: float) -> None:
        """See `ClientSession`: ask again for the users who were hidden."""
        for uids in self._persistent_state.watches.hidden_batches():
            self.watch(uids, now)

    def tick(self, now: float) -> Effects:
        """Time out requests, and send due requests of the client itself and renewals."""
        effects = self.expire_requests(now)
        self.own_requests.tick(now)
        self.renewal.tick(now)
        return effects
