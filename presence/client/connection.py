"""A logged-in connection: the session, and the requests that the client makes on it by itself.

These renew the token, make the watches that the program requests without waiting, and after a reconnect
restore watches, passes and what the login could not carry.

Tests: `tests/client/test_renewal.py`, `tests/client/test_resubscription.py`,
`tests/client/test_client_model.py`.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

from presence import protocol
from presence.client.errors import CodedError, PresenceError, RequestFailed
from presence.client.kept_state import PersistentState
from presence.client.login_token import LoginToken
from presence.client.pending import Effects, Result
from presence.client.pushes import WatchEnded
from presence.client.reconnect import Backoff, Chance, Loss
from presence.client.session import ClientSession, Keepalives
from presence.client.tokens import remaining_lifetime_s
from presence.protocol import Code, Packet

ANSWER_TIMEOUT_S = 10.0
MAX_IN_FLIGHT = 2  # a server allows few pending requests per client
USERS_THAT_FIT = 32  # with their devices, into one answer: a refusal of so few is about the number of watches


class _Watches(NamedTuple):
    """Users to watch: again after a reconnect, or without waiting."""

    state: PersistentState
    uids: list[str]
    are_listed: bool = False  # in the roster, and asked for by name because the server is older

    def current(self) -> "_Watches | None":
        """Return the same for those who are still watched; None if there are none."""
        watches = self.state.watches
        uids = [uid for uid in self.uids if uid in watches and watches.is_listed(uid) is self.are_listed]
        return self._replace(uids=uids) if uids else None

    def packet(self) -> Packet:
        return self.state.watch(self.uids)

    def refused(self, error: RequestFailed, others: list["_OwnRequest"]) -> "_Outcome":
        """Return the outcome of a refusal for good; `others` are pending."""
        if error.code == Code.TOO_LARGE and self.state.watch_devices and len(self.uids) > USERS_THAT_FIT:
            # The answer, with all devices, would not fit into a frame.
            return [], [self._replace(uids=half) for half in _halves(self.uids)]
        asked = {uid for each in others if isinstance(each, _Watches) for uid in each.uids}
        ended = tuple(uid for uid in self.uids if uid not in asked)
        self.state.watches.end(ended)
        return [WatchEnded(ended, error.code, error.reason, error.message)] if ended else [], []


class _WatchedRooms(NamedTuple):
    """Rooms to watch again after a reconnect, in parts if the server refuses one of them."""

    state: PersistentState
    rooms: list[str]

    def current(self) -> "_WatchedRooms | None":
        rooms = [room for room in self.rooms if room in self.state.watched_rooms]
        return self._replace(rooms=rooms) if rooms else None

    def packet(self) -> Packet:
        return protocol.watch(rooms=self.rooms)

    def refused(self, error: RequestFailed, _others: list["_OwnRequest"]) -> "_Outcome":
        if len(self.rooms) > 1 and error.code in (Code.NOT_ALLOWED, Code.TOO_LARGE):
            return [], [self._replace(rooms=half) for half in _halves(self.rooms)]
        return [*self.state.watched_rooms.end(self.rooms)], []


class _Roster(NamedTuple):
    """The users whom the backend has listed for this one: again after a reconnect, or without waiting."""

    state: PersistentState

    def current(self) -> "_Roster | None":
        return self if self.state.watches.follows_roster else None

    def packet(self) -> Packet:
        return self.state.watch([], roster=True)

    def refused(self, error: RequestFailed, _others: list["_OwnRequest"]) -> "_Outcome":
        watches = self.state.watches
        if not watches.follows_roster:  # the program has unwatched it since
            return [], []
        if error.code == Code.UNSUPPORTED and watches.roster_was_granted:
            # An older server, as during an upgrade: it can watch the users as they were listed last.
            return [], [_Watches(self.state, uids, are_listed=True) for uids in watches.listed_batches()]
        return [WatchEnded(watches.end_roster(), error.code, error.reason, error.message)], []


class _Pass(NamedTuple):
    """A pass that an earlier connection had."""

    state: PersistentState
    text: str

    def current(self) -> "_Pass | None":
        return self if self.text in self.state.passes else None

    def packet(self) -> Packet:
        return protocol.watch([], visibility_pass=self.text)

    def refused(self, _error: RequestFailed, _others: list["_OwnRequest"]) -> "_Outcome":
        self.state.passes.pop(self.text, None)
        return [], []


class _Rest(NamedTuple):
    """What the login had to leave out."""

    state: PersistentState

    def current(self) -> "_Rest | None":
        return self if self.state.rest() else None

    def packet(self) -> Packet:
        return self.state.rest() or protocol.update()

    def refused(self, _error: RequestFailed, _others: list["_OwnRequest"]) -> "_Outcome":
        return [], []


class _RoomsLeftOut(NamedTuple):
    """Rooms that the login had to leave out, in parts if the server refuses one of them."""

    state: PersistentState
    rooms: list[str]

    def current(self) -> "_RoomsLeftOut | None":
        wanted = self.state.rooms_to_join()
        rooms = [room for room in self.rooms if room in wanted]
        return self._replace(rooms=rooms) if rooms else None

    def packet(self) -> Packet:
        return protocol.update(join=self.rooms)

    def refused(self, _error: RequestFailed, _others: list["_OwnRequest"]) -> "_Outcome":
        return [], [self._replace(rooms=half) for half in _halves(self.rooms)]


_OwnRequest: TypeAlias = _Watches | _WatchedRooms | _Roster | _Pass | _Rest | _RoomsLeftOut
_Outcome: TypeAlias = tuple[Effects, list[_OwnRequest]]
"""What a refusal leads to, and what to request instead."""


def _halves(names: list[str]) -> list[list[str]]:
    """Split a list in two; none if it has one element."""
    half = len(names) // 2
    return [names[:half], names[half:]] if half else []


class OwnRequests:
    """Requests of the client itself, repeated until each is granted or refused for good.

    A server that is busy, fails or does not answer is asked again with growing pauses, which begin anew after
    a success. `due_at` is when the next request is due; infinite if none is.

    Passes come first, and a watch waits for the answers to passes and tokens: its own answer then shows all
    that the client may see, and the users who were hidden are asked for once, after the last of these, and
    after watches that were sent before them. A pass that has failed for now is tried again after everything
    else, so that it delays no watch for long.
    """

    def __init__(
        self, session: ClientSession, requests: Iterable[_OwnRequest], now: float, chance: Chance
    ) -> None:
        self._session = session
        self._chance = chance
        self._backoff = Backoff()
        self._passes: deque[_OwnRequest] = deque()  # not tried yet on this connection
        self._queue: deque[_OwnRequest] = deque()
        for request in requests:
            (self._passes if isinstance(request, _Pass) else self._queue).append(request)
        self._postponed: list[_OwnRequest] = []  # until `due_at`
        self._in_flight: list[_OwnRequest] = []
        self._sight_changed = False  # since the users who were hidden have last been asked for
        self.due_at = math.inf

    def add(self, request: _OwnRequest, now: float) -> None:
        """Make another request, immediately unless the server has asked for a pause."""
        self._queue.append(request)
        self.send(now)

    def sight_changed(self) -> None:
        """The server has taken a token or a pass: ask again for the users who were hidden."""
        self._sight_changed = True

    def tick(self, now: float) -> None:
        """Send due requests."""
        if now >= self.due_at:
            self.due_at = math.inf
            passes = [request for request in self._postponed if isinstance(request, _Pass)]
            others = [request for request in self._postponed if not isinstance(request, _Pass)]
            self._queue = deque([*others, *self._queue, *passes])
            self._postponed.clear()
        self.send(now)

    def send(self, now: float) -> None:
        """Send what need not wait: for a pause, for the answers to others, to passes and tokens."""
        if self._session.is_leaving:
            return
        while self.due_at == math.inf and len(self._in_flight) < MAX_IN_FLIGHT:
            if self._passes:
                self._send(self._passes.popleft(), now)
            elif self._session.sight_requests:
                break
            elif self._sight_changed and not self._session.watch_requests:
                self._sight_changed = False
                self._queue_hidden()
            elif self._queue:
                self._send(self._queue.popleft(), now)
            else:
                break

    def _queue_hidden(self) -> None:
        """Ask for the users who were hidden, unless a request that waits to be sent does so."""
        watches = self._session.persistent_state.watches
        waiting = {uid for each in self._queue if isinstance(each, _Watches) for uid in each.uids}
        for uids in watches.hidden_batches(waiting):
            self._queue.append(_Watches(self._session.persistent_state, uids))
        if watches.hides_listed and not any(isinstance(each, _Roster) for each in self._queue):
            self._queue.append(_Roster(self._session.persistent_state))

    def _send(self, request: _OwnRequest, now: float) -> None:
        if (current := request.current()) is not None:
            on_answer = partial(self._answered, current)
            self._session.request(current.packet(), ANSWER_TIMEOUT_S, now, on_answer=on_answer)
            self._in_flight.append(current)

    def _answered(self, request: _OwnRequest, result: Result, now: float) -> Effects:
        self._in_flight.remove(request)
        if (
            isinstance(result, RequestFailed)
            and result.code in list(Code)
            and not Code(result.code).reconnect
        ):
            others = [*self._in_flight, *self._queue, *self._postponed]
            effects, instead = request.refused(result, others)
            self._queue.extendleft(reversed(instead))
            return effects
        if isinstance(result, PresenceError):
            retry_after = result.retry_after if isinstance(result, CodedError) else None
            self._postponed.append(request)
            self.due_at = min(self.due_at, now + self._backoff.next_s(self._chance, 0.0, retry_after))
        else:
            self._backoff = Backoff()
        return []


class ClientConnection(ClientSession):
    """A `ClientSession` that restores the watches of earlier connections and renews its token."""

    def __init__(
        self,
        keepalives: Keepalives,
        now: float,
        ids: Iterator[int],
        outgoing: bytearray,
        persistent_state: PersistentState,
        *,
        login_token: LoginToken,
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
            *self._left_out(),
            *(_Pass(state, text) for text in state.passes),
            *([_Roster(state)] if state.watches.follows_roster else []),
            *(_Watches(state, uids) for uids in state.watches.batches()),
            *(_WatchedRooms(state, rooms) for rooms in state.watched_rooms.batches()),
        ]
        self.own_requests = OwnRequests(self, restored, now, chance)
        self._login_token = login_token
        self.own_requests.tick(now)

    @property
    def deadline(self) -> float:
        """When `tick` or a keepalive is due."""
        return min(super().deadline, self.own_requests.due_at, self._login_token.due_at)

    def watch(self, uids: list[str], now: float) -> None:
        """Request watches, until they are granted or refused for good."""
        self.own_requests.add(_Watches(self.persistent_state, uids), now)

    def watch_roster(self, now: float) -> None:
        """Request the roster, until it is granted or refused for good."""
        self.own_requests.add(_Roster(self.persistent_state), now)

    def renew_token(self, lacking: Loss | None, now: float) -> None:
        """Send the token that the program has returned; ask for it again later if there is none to send."""
        token = self._login_token
        if lacking is not None:
            token.postpone(now)
            return
        update = protocol.update(token=token.sent)
        self.request(update, ANSWER_TIMEOUT_S, now, on_answer=token.update_answered)

    def token_accepted(self, token: str, now: float) -> None:
        """Renew this one, too, before it expires."""
        self._login_token.update_accepted(token, now)

    def sight_changed(self) -> None:
        """Ask again for the users who were hidden."""
        self.own_requests.sight_changed()

    def login_incomplete(self, now: float) -> None:
        """Send what the login left out, unless the server has asked for a pause."""
        for request in self._left_out():
            self.own_requests.add(request, now)

    def _left_out(self) -> list[_Rest | _RoomsLeftOut]:
        """Return the requests that complete the login; rooms first, because leaving them is seen."""
        state = self.persistent_state
        rooms, rest = state.rooms_to_join(), [_Rest(state)] if state.rest() else []
        return [_RoomsLeftOut(state, rooms), *rest] if rooms else [*rest]

    def handle_answer(self, packet: Packet, now: float) -> Effects:
        """Handle an answer, and send what has waited for it."""
        effects = super().handle_answer(packet, now)
        self.own_requests.send(now)
        return effects

    def tick(self, now: float) -> Effects:
        """Time out requests, and send due requests of the client itself and renewals."""
        effects = self.expire_requests(now)
        self.own_requests.tick(now)
        self._login_token.tick(now)
        return effects
