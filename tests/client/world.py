"""A program, a network and a server that do anything at any time, and what a client has to do about it.

The machine of a client runs in virtual time, with seeded randomness. Beside it a reference keeps the rules:
which token may be sent, when a request of the client itself is due again, which messages may arrive in which
order, whom the client watches, when the client may end. It knows packets and results only, nothing of the
machine's inside.
"""

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from presence import protocol
from presence.client import (
    Connected,
    Disconnected,
    Ended,
    NotConnected,
    PresenceChanged,
    RequestFailed,
    State,
    WatchEnded,
)
from presence.client.connection import ANSWER_TIMEOUT_S, MAX_IN_FLIGHT
from presence.client.login_token import TOKEN_TIMEOUT_S
from presence.client.pending import Effects, RequestResult
from presence.client.reconnect import RECONNECT_MAX_S, ReconnectPolicy
from presence.client.state_machine import CONNECT_TIMEOUT_S, LOGIN_TIMEOUT_S, LOGOUT_TIMEOUT_S, ClientMachine
from presence.protocol import Code, Kind, Packet, to_row
from tests.client.machine_driver import KEEPALIVE, SERVER_TIME_S, login_ok, token

EPSILON_S: Final = 1e-6
RETRY_AFTER_MAX_S: Final = 30.0
USERS: Final = [f"u{number}" for number in range(40)]
FRIENDS: Final = ("bob", "eve")
ACTIONS: Final = {  # and how often each is taken, to the others
    "time passes": 40,
    "a long time passes": 2,
    "the network connects": 40,
    "the network delivers": 60,
    "the network refuses": 15,
    "the network fails": 2,
    "the server reads": 60,
    "the server says goodbye": 1,
    "a friend moves": 20,
    "the program makes a token": 40,
    "the program asks": 5,
    "the program sends a message": 40,
    "the program watches": 10,
    "the program watches soon": 30,
    "the program unwatches": 40,
    "the program watches the roster": 5,
    "the program watches the roster soon": 10,
    "the program unwatches all": 1,
    "the program unwatches the roster": 2,
    "the backend lists a user": 60,
    "the program gives a pass": 5,
    "the program updates": 5,
    "the program cancels": 5,
    "the program logs out": 1,
    "the program disconnects": 1,
}
ROOMS: Final = ("attic", "hall", "lobby", "yard")
ROSTER_MAX: Final = 6  # beyond it the backend rather removes users
TEMPORARY: Final = (Code.BUSY, Code.RATE_LIMITED, Code.SERVER_ERROR)


def rooms_after(rooms: set[str], update: Mapping[str, Any]) -> set[str]:
    return {*update.get("rooms", rooms)} - {*update.get("leave", ())} | {*update.get("join", ())}


def new_machine(now: float, *, persistent: bool, fetches: bool, chance: Callable[[], float]) -> ClientMachine:
    """Return the machine of a user without more options."""
    policy = ReconnectPolicy(persistent=persistent, chance=chance)
    return ClientMachine(protocol.login("ann"), now, reconnect_policy=policy, fetches=fetches, chance=chance)


class World:
    """One client after the other, on one server.

    Args:
        seed: of everything random.
        fetches: whether the program has a token function.
        new_machine: makes the machine; that of another language has the same methods and results.

    Attributes:
        done: how often each action was taken.
    """

    def __init__(self, seed: int, *, fetches: bool, new_machine: Callable[..., Any] = new_machine) -> None:
        self._new_machine = new_machine
        self.random = random.Random(seed)
        self._rooms_random = random.Random(f"{seed} rooms")  # so that all else is as without rooms
        self.now = 1000.0
        self.done: Counter[str] = Counter()
        self._fetches = fetches
        self._chance = 0.5
        self._tokens = 0
        self._bad: set[str] = set()  # tokens that the server refuses
        self._expiries: dict[str, float] = {}
        self._cached = ""  # what the program's function returns again
        self._friends = dict.fromkeys(FRIENDS, "online")
        self._roster: set[str] = set()
        self._begin_client()

    def _begin_client(self) -> None:
        self._persistent = self.random.random() < 0.7
        self.machine = self._new_machine(
            self.now, persistent=self._persistent, fetches=self._fetches, chance=lambda: self._chance
        )
        self._was_online = self._must_end = self._is_logging_out = False
        self._last_refused = self._accepted = ""
        self._login_token = ""
        self._refusal_counts = False  # a login's token was refused, and none accepted since
        self._clock_s: float | None = None  # from `now` to the server's Unix time, as the client knows it
        self._wanted: set[str] = set()  # named by the program
        self._told: set[str] = set()  # watched because of the roster, as the program was told
        self._follows_roster = self._had_roster = False
        self._undelivered: set[int] = set()  # messages of which the client has said so
        self._next_message = 0
        self._is_quiet = False  # as granted
        self._rooms: set[str] = set()  # as granted
        self._lose_connection()

    def _lose_connection(self) -> None:
        """Forget what belonged to the connection."""
        self._connected = self._online = False
        self._to_server = protocol.Decoder()
        self._unread: deque[Packet] = deque()
        self._undelivered_answers: deque[Packet] = deque()
        self._due: dict[int, float] = {}  # by id of the program's requests
        self._sent: dict[int, Packet] = {}  # by id, without an answer
        self._renewals: dict[int, float] = {}  # by id of the client's own updates: when they time out
        self._own: dict[int, float] = {}  # by id of the client's own watches: when they time out
        self._too_late: set[int] = set()  # of these, sent before the roster was unwatched
        self._own_streak = 0
        self._own_due_at = math.inf
        self._own_postponed: list[set[str]] = []
        self._watching: dict[int, set[str]] = {}
        self._roster_requests: dict[int, set[str]] = {}  # and who was unwatched since
        self._ended: set[str] = set()  # whom the server may watch because of a request without an answer
        self._named: set[str] = set()  # by the server
        self._listed: set[str] = set()  # watched by the server because of the roster
        self._unlisted: set[str] = set()  # of the roster, unwatched
        self._server_follows_roster = False
        self._keeps_rosters = self.random.random() < 0.7  # or is an older server
        self._bodies: dict[int, int] = {}  # by id of the message's request
        self._quiet_requests: dict[int, bool] = {}  # by id of the update
        self._room_requests: dict[int, dict[str, list[str]]] = {}  # by id of the update
        self._session_rooms: set[str] = set()  # as the server has them
        self._has_rooms = self._rooms_random.random() < 0.7  # or is an older server
        self._arrived: dict[str, int] = {}  # by recipient, the last message of this connection
        self._kept_alive_at = self.now

    # Steps

    def run(self, steps: int) -> None:
        """Do so many things, and then check that everything comes to rest."""
        for _ in range(steps):
            (action,) = self.random.choices(list(ACTIONS), list(ACTIONS.values()))
            self.done[action] += 1
            self._chance = self.random.choice((0.0, 0.1, 0.5, 0.9, 0.999))
            getattr(self, "_" + action.replace(" ", "_"))()
            self._check()
        self._come_to_rest()

    def _come_to_rest(self) -> None:
        """With a server that answers everything, the client knows all users that it watches."""
        if self.machine.state in (State.ENDED, State.LOGGING_OUT):
            return
        client = self.machine
        for _ in range(600):
            if self.machine is not client:
                return  # it has ended, as it had to
            self._the_program_makes_a_token(good=True)
            self._the_network_connects()
            self._the_server_reads(willing=True)
            self._the_network_delivers()
            self._pass_time(1.0)
            self._check()
        assert self.machine.state is State.ONLINE
        joined = sorted(self._session_rooms) if self._has_rooms else None
        assert self.machine.persistent_state.joined == joined, "the client knows its rooms"
        states = self.machine.persistent_state.watches.states()
        assert {uid for uid, state in states.items() if state.status == "unknown"} == set()
        watched = self._named | self._listed
        assert self._wanted <= watched
        if self._follows_roster and self._keeps_rosters:
            assert states.keys() <= watched, "client and server agree"
            assert watched - states.keys() <= self._ended, "client and server agree"
        else:
            assert self._told <= watched, "who was listed last is watched by name"

    def _check(self) -> None:
        machine = self.machine
        assert all(self.now <= due + EPSILON_S for due in self._due.values()), "an answer in time"
        assert machine.persistent_state.watches.states().keys() == self._wanted | self._told
        if machine.state is State.ENDED:
            assert self._must_end or not (self._persistent or self._was_online), machine.error
            assert not self._due, "the end answers everything"
            assert machine.deadline == math.inf
            assert not machine.has_outgoing
            self._begin_client()
            return
        assert not self._must_end
        longest_s = max(
            *(KEEPALIVE, CONNECT_TIMEOUT_S, LOGIN_TIMEOUT_S, LOGOUT_TIMEOUT_S, TOKEN_TIMEOUT_S),
            RECONNECT_MAX_S + RETRY_AFTER_MAX_S,
        )
        assert machine.deadline - self.now <= longest_s

    # Time

    def _time_passes(self) -> None:
        self._pass_time(self.random.choice((0.01, 0.1, 0.5, 1.0, 3.0)))

    def _a_long_time_passes(self) -> None:
        self._pass_time(self.random.uniform(5.0, 60.0))

    def _pass_time(self, seconds: float) -> None:
        end, turns = self.now + seconds, 0
        while (stop := min(self.machine.deadline, self._own_due_at)) <= end:
            assert stop >= self.now - EPSILON_S, "what is due was done"
            turns = turns + 1 if stop <= self.now else 0
            assert turns < 5, "no busy loop"
            self.now = max(self.now, stop)
            expired = [id for id, at in self._own.items() if at <= self.now]
            is_due = self._own_due_at <= self.now
            for id in expired:
                self._own_failed(id, None)
            if is_due:
                self._own_due_at = math.inf if not expired else self._own_due_at
            self._note(self.machine.tick(self.now))
            if is_due and self.machine.state is State.ONLINE:
                self._check_repetition()
        self.now = end

    def _check_repetition(self) -> None:
        """What a busy server has refused is asked for again when the pause ends, and not later."""
        postponed = set().union(*self._own_postponed) & self._wanted
        self._own_postponed.clear()
        asked = set[str]().union(*(self._sent[id].payload["uids"] for id in self._own))
        waits = any("pass" in each.payload or "token" in each.payload for each in self._sent.values())
        if not waits and len(self._own) < MAX_IN_FLIGHT and self._own_due_at == math.inf:
            assert postponed <= asked, "the pause is longer than it should be"

    # Network

    def _the_network_connects(self) -> None:
        if self.machine.state is State.CONNECTING:
            self._lose_connection()
            self._connected = True
            self.machine.established(self.now)
            self._send()

    def _the_network_refuses(self) -> None:
        if self.machine.state is State.CONNECTING:
            self._the_network_fails()

    def _the_network_fails(self) -> None:
        if self.machine.state is State.CONNECTING or self.machine.connected:
            self._connected = False
            self._note(self.machine.disconnected("broken", self.now))

    def _the_network_delivers(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            if not (self._connected and self._undelivered_answers):
                return
            packet = self._undelivered_answers.popleft()
            self._before_answer(packet)
            self._note(self.machine.received(protocol.encode(packet), self.now))

    def _send(self) -> None:
        """Take what the client sends."""
        data = self.machine.take_outgoing()
        self.machine.written(self.now)
        assert self._connected or not data, "nothing is sent without a connection"
        self._to_server.feed(data)
        while (packet := self._to_server.next()) is not None:
            self._unread.append(packet)
            if packet.kind == Kind.KEEPALIVE:
                assert self.now - self._kept_alive_at <= KEEPALIVE + EPSILON_S
                self._kept_alive_at = self.now
            sent = packet.payload.get("token")
            assert sent is None or sent != self._last_refused, "a refused token is not sent again"
            if packet.kind == Kind.LOGIN:
                self._login_token = sent or ""
                assert packet.payload.get("quiet", False) is self._is_quiet, (
                    "later logins carry what was granted"
                )
                assert {*packet.payload.get("rooms", ())} == self._rooms, "later logins have the rooms"
            if packet.kind == Kind.UNWATCH:  # also of what the program does not wait for any more
                self._note_unwatch(set(packet.payload.get("uids", USERS)))
            if packet.id is not None:
                self._sent[packet.id] = packet
                is_own = packet.kind == Kind.WATCH and packet.id not in self._due
                if is_own and packet.id not in self._watching:
                    self._own[packet.id] = self.now + ANSWER_TIMEOUT_S
                if packet.kind == Kind.UPDATE and sent:
                    self._renewals[packet.id] = self.now + ANSWER_TIMEOUT_S

    # Program

    def _the_program_makes_a_token(self, *, good: bool = False) -> None:
        if not self.machine.wants_token:
            return
        kind = "good" if good else self.random.choice(("cached", "cached", "good", "bad", "old", "none"))
        if kind == "none":
            self._note(self.machine.token_fetched(OSError("no way there"), self.now))
            return
        if kind != "cached" or not self._cached:
            self._tokens += 1
            left_s = -10.0 if kind == "old" else self.random.choice((5.0, 60.0, 600.0))
            expires_s = SERVER_TIME_S + self.now + left_s
            self._cached = token(expires_s, self._tokens)
            self._expiries[self._cached] = expires_s
            if kind in ("bad", "old"):
                self._bad.add(self._cached)
        given, before = self._cached, self.machine.state
        usable = given != self._last_refused
        if before is State.FETCHING_TOKEN:
            clock_s = None if self._clock_s is None else self.now + self._clock_s
            if self._refusal_counts and clock_s is not None and self._expiries[given] <= clock_s:
                usable = False
        self._note(self.machine.token_fetched(given, self.now))
        if before is State.FETCHING_TOKEN:
            assert (self.machine.state is State.CONNECTING) is usable, "a good token is used, and no other"

    def _request(self, packet: Packet, timeout_s: float, *, retries: bool = False) -> int | None:
        if self.machine.state is not State.ONLINE:
            with pytest.raises((NotConnected, Ended)):
                self.machine.request(packet, timeout_s, self.now, retries=retries)
            return None
        id: int = self.machine.request(packet, timeout_s, self.now, retries=retries)
        self._due[id] = self.now + timeout_s
        return id

    def _the_program_asks(self) -> None:
        self._request(protocol.query(["bob"]), self.random.uniform(0.1, 20.0))
        self._note([])

    def _the_program_sends_a_message(self) -> None:
        self._next_message += 1
        body, retries = self._next_message, self.random.random() < 0.8
        to = self.random.choice(FRIENDS)
        confirm = None if retries or body % 2 else 10.0
        packet = protocol.message(to, body, confirm=confirm)
        id = self._request(packet, (confirm or 0.0) + self.random.uniform(0.5, 20.0), retries=retries)
        if id is not None:
            self._bodies[id] = body
        self._note([])

    def _some_users(self) -> list[str]:
        return self.random.sample(USERS, self.random.randint(1, 4))

    def _the_program_watches(self) -> None:
        uids = self._some_users()
        id = self._request(protocol.watch(uids), self.random.uniform(0.5, 20.0))
        if id is not None:
            self._watching[id] = set(uids)
        self._note([])

    def _the_program_watches_soon(self) -> None:
        uids = self._some_users()
        self.machine.watch_nowait(uids, self.now) if self.machine.state is not State.ENDED else None
        self._wanted |= set(uids)
        self._note([])

    def _the_program_unwatches(self) -> None:
        self._unwatch(self._some_users())

    def _the_program_unwatches_all(self) -> None:
        self._no_roster()
        self._unwatch(None)

    def _the_program_unwatches_the_roster(self) -> None:
        if self.machine.state is not State.ENDED:
            if (id := self.machine.unwatch_roster(5.0, self.now)) is not None:
                self._due[id] = self.now + 5.0
            self._no_roster()
            self._told.clear()
        self._note([])

    def _no_roster(self) -> None:
        self._follows_roster = self._had_roster = False
        self._roster_requests.clear()
        self._too_late |= self._own.keys()

    def _unwatch(self, uids: list[str] | None) -> None:
        id = self.machine.unwatch(uids, 5.0, self.now)
        if id is not None:
            self._due[id] = self.now + 5.0
        gone = set(USERS if uids is None else uids)
        self._wanted -= gone
        self._told -= gone
        for requested in self._watching.values():
            requested.difference_update(gone)
        self._note_unwatch(gone)
        self._note([])

    def _note_unwatch(self, uids: set[str]) -> None:
        self._ended |= uids
        for unwatched in self._roster_requests.values():
            unwatched.update(uids)

    def _the_program_watches_the_roster(self) -> None:
        packet = protocol.watch([], roster=True)
        if (id := self._request(packet, self.random.uniform(0.5, 20.0))) is not None:
            self._roster_requests[id] = set()
        self._note([])

    def _the_program_watches_the_roster_soon(self) -> None:
        if self.machine.state is not State.ENDED:
            self.machine.watch_roster_nowait(self.now)
            self._follows_roster = True
        self._note([])

    def _the_program_gives_a_pass(self) -> None:
        self._tokens += 1
        text = f"p{self._tokens}"
        id = self._request(protocol.watch([], visibility_pass=text), self.random.uniform(0.5, 20.0))
        if id is not None:
            self._watching[id] = set()
        self._note([])

    def _the_program_updates(self) -> None:
        is_quiet = self.random.choice((True, False))
        status = self.random.choice(("away", "online"))
        change = self._room_change()
        update = protocol.update(status=status, quiet=is_quiet)
        update = update._replace(payload={**update.payload, **change})
        if (id := self._request(update, 5.0)) is not None:
            self._quiet_requests[id] = is_quiet
            self._room_requests[id] = change
        self._note([])

    def _room_change(self) -> dict[str, list[str]]:
        keys = [key for key in ("rooms", "join", "leave") if self._rooms_random.random() < 0.4]
        return {key: self._rooms_random.sample(ROOMS, self._rooms_random.randint(0, 3)) for key in keys}

    def _the_program_cancels(self) -> None:
        if self._due and self.machine.state is State.ONLINE:
            id = self.random.choice(list(self._due))
            del self._due[id]
            self._ended |= self._watching.pop(id, set())
            self._roster_requests.pop(id, None)
            self._room_requests.pop(id, None)
            self._note(self.machine.abandon_request(id))

    def _the_program_logs_out(self) -> None:
        try:
            id = self.machine.log_out(None, self.now)
        except NotConnected:
            self._must_end = self._must_end or self.machine.state is State.ENDED
            self._is_logging_out = self.machine.state is State.LOGGING_OUT
        else:
            self._due[id] = self.now + LOGOUT_TIMEOUT_S
            self._is_logging_out = True
        self._note([])

    def _the_program_disconnects(self) -> None:
        self._must_end = True
        self._note(self.machine.close())

    def _a_friend_moves(self) -> None:
        self._friends[self.random.choice(FRIENDS)] = self.random.choice(
            ("online", "away for a moment", "gone")
        )

    # Backend and server

    def _the_backend_lists_a_user(self) -> None:
        """Add a user to the roster, or remove one."""
        is_full = len(self._roster) >= ROSTER_MAX
        uid = self.random.choice(sorted(self._roster) if is_full else USERS)
        self._roster ^= {uid}
        if self._server_follows_roster and uid not in self._unlisted:
            is_added, was_watched = uid in self._roster, uid in self._listed | self._named
            (self._listed.add if is_added else self._listed.discard)(uid)
            if uid not in self._named and is_added is not was_watched:
                state = self._state_of(uid) if is_added else {"status": "removed"}
                reason = "removed" if not is_added else "watched" if "id" in state else "not_allowed"
                self._undelivered_answers.append(self._change(uid, state, reason))

    def _change(self, uid: str, state: Mapping[str, Any], reason: str) -> Packet:
        if self.random.random() < 0.5:
            return protocol.changes([to_row(uid, {**state, "reason": reason})])
        return protocol.presence(uid, state, reason)

    def _the_server_says_goodbye(self) -> None:
        if self._online:
            code = self.random.choice((Code.SERVER_RESTART, Code.SLOW_CONSUMER, Code.REPLACED, Code.KICKED))
            self._undelivered_answers.append(protocol.goodbye(code))

    def _the_server_reads(self, *, willing: bool = False) -> None:
        for _ in range(self.random.randint(1, 4)):
            if not (self._connected and self._unread):
                return
            packet = self._unread.popleft()
            if packet.id is not None or packet.kind == Kind.LOGIN:
                answer = self._answer(packet, willing=willing)
                if answer is not None:
                    self._undelivered_answers.append(answer)

    def _answer(self, packet: Packet, *, willing: bool) -> Packet | None:
        id, payload = packet.id, packet.payload
        if packet.kind in (Kind.LOGIN, Kind.UPDATE) and payload.get("token") in self._bad:
            return protocol.error(id, Code.AUTH_FAILED, "no")
        if packet.kind == Kind.MESSAGE:
            return self._answer_to_message(packet)
        if packet.kind in (Kind.WATCH, Kind.UPDATE, Kind.LOGIN) and not willing:
            luck = self.random.random()
            if luck < 0.02:
                return None
            if luck < 0.25:
                retry_after = self.random.choice((None, 0.5, 5.0))
                return protocol.error(id, self.random.choice(TEMPORARY), "later", retry_after)
            if luck < 0.28 and packet.kind == Kind.WATCH:
                refusal = Code.AUTH_FAILED if "pass" in payload else Code.TOO_LARGE
                return protocol.error(id, refusal, "no")
        if packet.kind == Kind.LOGIN:
            time_ms = round((SERVER_TIME_S + self.now) * 1000)
            self._session_rooms = {*payload.get("rooms", ())}
            return login_ok()._replace(payload={**login_ok().payload, "time_ms": time_ms, **self._joined()})
        if packet.kind == Kind.WATCH:
            return self._answer_to_watch(packet)
        if packet.kind == Kind.UNWATCH:
            uids = set(payload.get("uids", USERS))
            self._named -= uids
            self._listed -= uids
            self._unlisted |= uids
            if payload.get("roster") or "uids" not in payload:
                self._server_follows_roster = False
                self._listed.clear()
        if packet.kind == Kind.UPDATE and payload.keys() & {"rooms", "join", "leave", "token"}:
            self._session_rooms = rooms_after(self._session_rooms, payload)
            return protocol.ok(id, **self._joined())
        return protocol.ok(id)

    def _joined(self) -> dict[str, Any]:
        return {"joined": sorted(self._session_rooms)} if self._has_rooms else {}

    def _answer_to_watch(self, packet: Packet) -> Packet:
        uids = set(packet.payload["uids"])
        self._named |= uids
        self._unlisted -= uids
        more: dict[str, Any] = {}
        if packet.payload.get("roster") and self._keeps_rosters:
            self._server_follows_roster = True
            self._listed = set(self._roster)
            self._unlisted.clear()
            more["roster"] = len(self._roster)
            uids |= self._roster
        states = {uid: self._state_of(uid) for uid in sorted(uids)}
        if self.random.random() < 0.5:
            return protocol.ok(packet.id, states=[to_row(*each) for each in states.items()], **more)
        return protocol.ok(packet.id, presence=states, **more)

    def _state_of(self, _uid: str) -> Mapping[str, Any]:
        if self.random.random() < 0.2:
            return {"status": "not_allowed"}
        return {"status": "online", "id": f"{round(self.now * 1000)}-0"}

    def _answer_to_message(self, packet: Packet) -> Packet:
        to, body = packet.payload["to"], packet.payload["body"]
        if self._friends[to] == "gone":
            return protocol.error(packet.id, Code.RECIPIENT_OFFLINE, "no")
        if self._friends[to] != "online":
            return protocol.error(packet.id, Code.RECIPIENT_DISCONNECTED, "may return", 4.0)
        assert body not in self._undelivered, "what the client said was not delivered stays undelivered"
        assert body > self._arrived.get(to, 0), "messages arrive in the order of the calls"
        self._arrived[to] = body
        return protocol.ok(packet.id, delivered=1)

    # What an answer means, before the client has it

    def _before_answer(self, packet: Packet) -> None:
        if packet.kind == Kind.GOODBYE:
            self._must_end = self._is_logging_out or not packet.payload["reconnect"]
            return
        request = None if packet.id is None else self._sent.pop(packet.id, None)
        if request is None or packet.id is None:
            return
        if request.kind == Kind.LOGIN:
            self._before_login_answer(packet)
            return
        sent = request.payload.get("token")
        if self.now >= self._renewals.pop(packet.id, math.inf):
            return  # too late: the client has forgotten it
        if sent and packet.kind == Kind.OK:
            self._accepted, self._refusal_counts = sent, False
        elif sent and packet.payload["code"] == Code.AUTH_FAILED:
            self._last_refused = sent
        if request.kind == Kind.WATCH:
            if request.payload.get("roster"):
                self._before_roster_answer(packet, packet.id)
            self._before_watch_answer(packet, packet.id)

    def _before_login_answer(self, packet: Packet) -> None:
        if packet.kind == Kind.OK:
            self._online = self._was_online = True
            self._accepted, self._refusal_counts = self._login_token, False
            self._clock_s = packet.payload["time_ms"] / 1000 - self.now
            self._kept_alive_at = self.now
        elif packet.payload["code"] == Code.AUTH_FAILED:
            self._last_refused = self._login_token
            self._must_end = self._refusal_counts
            self._refusal_counts = True
        elif not (self._persistent or self._was_online):
            self._must_end = True

    def _before_roster_answer(self, packet: Packet, id: int) -> None:
        is_own, unwatched = id in self._own, self._roster_requests.pop(id, None)
        if "roster" in packet.payload and (is_own or unwatched is not None):
            if id not in self._too_late:
                self._follows_roster = self._had_roster = True
            states = packet.payload.get("states") or packet.payload.get("presence", {})
            if unwatched is not None:
                self._told |= {protocol.from_row(each)[0] for each in states} - unwatched - self._wanted
        elif is_own:
            if not self._is_for_now(packet):
                self._follows_roster = self._had_roster = False
            if packet.kind == Kind.OK:
                del self._own[id]  # for the client it was refused

    def _is_for_now(self, refusal: Packet) -> bool:
        """Whether the client asks for the roster again: it is busy, or older than the server before."""
        return self._had_roster if refusal.kind == Kind.OK else refusal.payload["code"] in TEMPORARY

    def _before_watch_answer(self, packet: Packet, id: int) -> None:
        if id in self._own:
            if packet.kind == Kind.OK:
                del self._own[id]
                self._own_streak = 0
            elif packet.payload["code"] in TEMPORARY:
                self._own_failed(id, packet.payload.get("retry_after"))
            else:
                del self._own[id]
        elif (uids := self._watching.pop(id, None)) is not None and packet.kind == Kind.OK:
            self._wanted |= uids

    def _own_failed(self, id: int, retry_after: float | None) -> None:
        """A request of the client itself has failed for now: when it is due again."""
        del self._own[id]
        request = self._sent.get(id)
        pause_s = (retry_after or 0.0) + min(60.0, 2.0**self._own_streak) * self._chance
        self._own_streak += 1
        self._own_due_at = min(self._own_due_at, self.now + pause_s)
        if request is not None:
            self._own_postponed.append(set(request.payload["uids"]))

    # What the client returns

    def _note(self, effects: Effects) -> None:
        for each in effects:
            if isinstance(each, RequestResult):
                self._note_result(each)
            elif isinstance(each, Connected):
                assert self._online
                assert each.again is (self.machine.reconnect_policy.logins > 1)
            elif isinstance(each, Disconnected):
                assert 0 <= each.retry_in <= RECONNECT_MAX_S + RETRY_AFTER_MAX_S
                is_first = not (self._persistent or self._was_online)
                assert not is_first or each.code == Code.AUTH_FAILED, "the first attempt is decisive"
                self._lose_connection()
            elif isinstance(each, WatchEnded):
                self._wanted -= set(each.uids)
                self._told -= set(each.uids)
                self._ended |= set(each.uids)
            elif isinstance(each, PresenceChanged) and each.reason == "removed":
                assert each.uid in self._told - self._wanted
                self._told.discard(each.uid)
            elif isinstance(each, PresenceChanged) and each.uid not in self._wanted:
                self._told.add(each.uid)
        if self.machine.state is State.ENDED:
            self._must_end = self._must_end or self._is_logging_out
            self._connected = False
        self._send()

    def _note_result(self, each: RequestResult) -> None:
        assert self._due.pop(each.id, None) is not None, "answered once, and only if requested"
        self._ended |= self._watching.pop(each.id, set())
        self._roster_requests.pop(each.id, None)
        is_quiet = self._quiet_requests.pop(each.id, None)
        if is_quiet is not None and not isinstance(each.result, Exception):
            self._is_quiet = is_quiet
        change = self._room_requests.pop(each.id, None)
        if change and not isinstance(each.result, Exception) and "joined" in each.result:
            self._rooms = rooms_after(self._rooms, change)
        body = self._bodies.pop(each.id, None)
        if body is not None and isinstance(each.result, RequestFailed | NotConnected | Ended):
            self._undelivered.add(body)
        assert not isinstance(each.result, Ended) or self.machine.state is State.ENDED
