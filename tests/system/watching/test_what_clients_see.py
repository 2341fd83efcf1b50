"""What clients see, on a real server: of invisible users nothing, and by a query the same as by a watch.

Users come, go, change and lose connections, first visible, then invisible. Observers watch all of them; after
each step they query each, send each a message, and compare.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from loadtest.servers import LocalRedis
from presence import protocol
from presence.protocol import Code, Kind, Packet
from presence.protocol.constants import STATUSES
from presence.reader import PresenceReader
from presence.store.keys import Keys
from presence.store.redis_client import open_client
from tests.support.line import Line
from tests.support.preloaded import PreloadedServer
from tests.support.waiting import wait_for

USERS = 20
CYCLES = 1
HIDDEN_PER_CYCLE = 10  # transitions in `cycle` while the user is invisible
MOMENTS = 1000
FLAGS = "--workers", "2", "--disconnect-grace", "0.5", "--idle-timeout", "300", "--packet-rate", "1000"
NEVER = {"status": "offline", "since_ms": None, "last_seen_ms": None, "id": None}


@dataclass
class User:
    """A user with up to two devices, and what clients must be shown."""

    uid: str
    address: tuple[str, int]
    shown: dict[str, Any] = field(default_factory=lambda: dict(NEVER))
    lines: dict[str, Line] = field(default_factory=dict)

    def log_in(self, device: str, **profile: Any) -> None:
        line = Line(self.address, protocol.login(self.uid, device=device, **profile))
        assert line.answer.kind == Kind.OK
        self.lines[device] = line

    def update(self, device: str, **change: Any) -> None:
        assert self.lines[device].ask(protocol.update(**change)).kind == Kind.OK

    def log_out(self, device: str) -> None:
        assert self.lines[device].ask(protocol.logout()).kind == Kind.OK
        self.lose(device)

    def lose(self, device: str) -> None:
        self.lines.pop(device).close()


class Observer:
    """A client that watches users, and remembers what it was pushed of each."""

    def __init__(self, address: tuple[str, int], uid: str, users: list[User]) -> None:
        self.line = Line(address, protocol.login(uid))
        self.users = users
        self._uids = [user.uid for user in users]
        assert self._states(protocol.watch(self._uids)) == dict.fromkeys(self._uids, NEVER)

    def _states(self, packet: Packet) -> dict[str, dict[str, Any]]:
        states: dict[str, dict[str, Any]] = self.line.ask(packet).payload["presence"]
        return states

    def queried(self) -> dict[str, dict[str, Any]]:
        return self._states(protocol.query(self._uids))

    def watched_anew(self) -> dict[str, dict[str, Any]]:
        self.line.ask(protocol.unwatch(self._uids))
        return self._states(protocol.watch(self._uids))

    def message_codes(self) -> Counter[int]:
        answers = self.line.ask_all([protocol.message(uid, "hello") for uid in self._uids])
        return Counter(answer.payload.get("code", 0) for answer in answers)

    def pushed(self, wait_s: float) -> dict[str, list[dict[str, Any]]]:
        """Return the payloads pushed since the last call, by user."""
        found: dict[str, list[dict[str, Any]]] = {}
        for packet in self.line.gather(wait_s):
            found.setdefault(packet.payload["uid"], []).append(dict(packet.payload))
        return found


@dataclass
class Crowd:
    """Users under observation."""

    users: list[User]
    observer: Observer
    reader: PresenceReader
    counts: Counter[str] = field(default_factory=Counter)

    def settle(self, **truth: Any) -> None:
        """Wait until the backend sees all users so."""
        uids = [user.uid for user in self.users]
        devices = truth.pop("devices", None)

        def is_so() -> bool:
            states = self.reader.states(uids).values()
            return all(
                {**truth}.items() <= state.items() and devices in {None, len(state["sessions"])}
                for state in states
            )

        wait_for(is_so)

    def expect_visible(self, status: str, reason: str, code: int) -> None:
        """Each user was pushed to the observer once, with this status; a query shows the same."""
        pushed = self.observer.pushed(0.3)
        for user in self.users:
            (payload,) = pushed.pop(user.uid)
            assert (payload["status"], payload["reason"]) == (status, reason)
            user.shown = {name: value for name, value in payload.items() if name not in {"uid", "reason"}}
            if status == "offline":
                user.shown["reason"] = reason
        assert pushed == {}
        self._expect_answers(code)

    def expect_hidden(self) -> None:
        """Nothing has changed for the observer, and the users are offline to it."""
        self.counts["hidden"] += len(self.users)
        leaks = self.observer.pushed(0.1)
        assert leaks == {}
        self._expect_answers(Code.RECIPIENT_OFFLINE)

    def _expect_answers(self, code: int) -> None:
        shown = {user.uid: user.shown for user in self.users}
        assert self.observer.queried() == shown
        assert self.observer.watched_anew() == shown
        assert self.observer.message_codes() == {code: len(self.users)}
        self.counts["answers"] += 3 * len(self.users)

    def cycle(self) -> None:
        """Play a visible period and two invisible ones, with two devices."""
        for user in self.users:
            user.log_in("phone", meta={"mood": "well"})
        self.settle(status="online", devices=1)
        self.expect_visible("online", "login", 0)
        for user in self.users:
            user.update("phone", status="invisible")
        self.settle(status="online", invisible=True)
        self.expect_visible("offline", "logout", Code.RECIPIENT_OFFLINE)
        self._hidden(lambda user: user.update("phone", meta={"mood": "shy"}), meta={"mood": "shy"})
        self._hidden(lambda user: user.log_in("desk", status="dnd", meta={"at": "desk"}), devices=2)
        self._hidden(lambda user: user.log_out("desk"), devices=1)
        self._hidden(lambda user: user.log_out("phone"), status="offline", invisible=True)
        self._hidden(lambda user: user.log_in("phone", status="invisible"), status="online", invisible=True)
        self._hidden(lambda user: user.log_in("desk", status="away"), devices=2)
        self._hidden(lambda user: user.lose("desk"), devices=1)  # after its grace
        self._hidden(lambda user: user.lose("phone"), status="offline")
        self._hidden(lambda user: user.log_in("phone", status="invisible"), status="online")
        self._hidden(lambda user: user.log_in("desk"), devices=2)
        for user in self.users:
            user.log_out("phone")
        self.settle(status="online", devices=1)
        self.expect_visible("online", "login", 0)
        for user in self.users:
            user.log_out("desk")
        self.settle(status="offline")
        self.expect_visible("offline", "logout", Code.RECIPIENT_OFFLINE)

    def _hidden(self, act: Any, **truth: Any) -> None:
        for user in self.users:
            act(user)
        self.settle(**truth)
        self.expect_hidden()


@contextmanager
def crowd(users: int) -> Iterator[Crowd]:
    """Start a server, its users and an observer."""
    with ExitStack() as stack:
        server = stack.enter_context(PreloadedServer(*FLAGS))
        guests = [User(f"u{n}", server.address) for n in range(users)]
        observer = Observer(server.address, "eve", guests)
        stack.callback(observer.line.close)
        yield Crowd(guests, observer, stack.enter_context(PresenceReader(server.redis_url)))
        for user in guests:
            assert user.lines == {}
        with closing(open_client(server.redis_url)) as client:
            entries: Any = client.xrange(Keys().events(0))
            assert sum(b"invisible" in fields for _, fields in entries) >= users * CYCLES


def test_clients_learn_nothing_of_invisible_users() -> None:
    with crowd(USERS) as played:
        for _ in range(CYCLES):
            played.cycle()
        print(
            f"invisible transitions: {played.counts['hidden']}; answers compared: {played.counts['answers']}"
        )
        assert played.counts["hidden"] == USERS * CYCLES * HIDDEN_PER_CYCLE


def lose_all(users: list[User]) -> None:
    for user in users:
        for device in [*user.lines]:
            user.lose(device)


def churn(users: list[User], is_over: threading.Event) -> None:
    """Let users come, go, change and lose connections until it is over."""
    chance = Random(7)
    while not is_over.is_set():
        user, device = chance.choice(users), chance.choice(("phone", "desk"))
        try:
            if device not in user.lines:
                user.log_in(device, status=chance.choice(STATUSES), meta={"v": chance.randrange(9)})
            elif (dice := chance.random()) < 0.3:
                user.log_out(device)
            elif dice < 0.4:
                user.lose(device)
            else:  # beyond its rate it is refused
                user.lines[device].ask(protocol.update(status=chance.choice(STATUSES)))
        except ConnectionError:  # two workers had a session of the device, begun at about the same time
            user.lose(device)


def test_a_query_and_a_watch_show_the_same_state_under_the_same_entry_id() -> None:
    chance, counts = Random(3), Counter[str]()
    known: dict[tuple[str, str | None], dict[str, Any]] = {}

    def compare(uid: str, state: dict[str, Any]) -> None:
        shown = {name: value for name, value in state.items() if name not in {"uid", "reason"}}
        assert known.setdefault((uid, state["id"]), shown) == shown

    with ExitStack() as stack:
        server = stack.enter_context(PreloadedServer(*FLAGS))
        users = [User(f"u{n}", server.address) for n in range(8)]
        stack.callback(lose_all, users)
        asking, watching = (Line(server.address, protocol.login(name)) for name in ("asking", "watching"))
        stack.callback(asking.close)
        stack.callback(watching.close)
        is_over = threading.Event()
        pool = stack.enter_context(ThreadPoolExecutor())
        stack.callback(is_over.set)
        churning = pool.submit(churn, users, is_over)
        while counts["moments"] < MOMENTS and not churning.done():
            time.sleep(chance.random() / 200)
            uid = chance.choice(users).uid
            query = pool.submit(asking.ask, protocol.query([uid]))
            watch = pool.submit(watching.ask, protocol.watch([uid]))
            states = [each.result().payload["presence"][uid] for each in (query, watch)]
            pushed = [packet.payload for packet in watching.pushed]
            watching.pushed.clear()
            for of, state in [(uid, state) for state in states] + [(state["uid"], state) for state in pushed]:
                compare(of, state)
            if chance.random() < 0.5:
                watching.ask(protocol.unwatch([uid]))
            counts["moments"] += 1
            counts["same entry"] += states[0]["id"] == states[1]["id"]
            counts["pushes"] += len(pushed)
        is_over.set()
        churning.result()
    print(f"a query and a watch at the same moment: {dict(counts)}, {len(known)} different states")
    assert counts["same entry"] > MOMENTS / 2
    assert counts["pushes"] > 0


def test_a_user_invisible_for_long_is_shown_like_one_who_never_came() -> None:
    keys, long_ago_ms = Keys(), int(time.time() * 1000) - 2 * 86_400_000
    with LocalRedis() as redis, PreloadedServer("--redis", redis.url, "--seen-retention-days", "1") as server:
        hidden, gone = User("hidden", server.address), User("gone", server.address)
        hidden.log_in("phone")
        hidden.update("phone", status="invisible")
        gone.log_in("phone")
        gone.log_out("phone")
        client: Any = redis.client
        wait_for(lambda: client.zscore(keys.seen(0), "gone"))
        record = json.loads(wait_for(lambda: _with_public(client.hget(keys.online(0), "hidden"))))
        code, entry_id, *_ = record["public"].split()
        record["public"] = f"{code} {entry_id} {long_ago_ms} {long_ago_ms}"
        client.hset(keys.online(0), "hidden", json.dumps(record))
        client.zadd(keys.seen(0), {"gone": long_ago_ms})
        with closing(Line(server.address, protocol.login("asking"))) as line:
            for ask in (protocol.query, protocol.watch):
                states = line.ask(ask(["hidden", "gone", "nobody"])).payload["presence"]
                assert states == dict.fromkeys(["hidden", "gone", "nobody"], NEVER)
        hidden.lose("phone")


def _with_public(record: bytes | None) -> bytes | None:
    return record if record and b"public" in record else None
