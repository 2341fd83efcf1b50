"""Rosters on real workers, which a backend changes while control connections break and Redis restarts.

After each trouble every client must watch what its roster has: told by what it was pushed, and by whom an
event reaches.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random

import pytest

from loadtest.servers import LocalRedis
from presence import protocol
from presence.common.errors import StoreError, StoreUnavailable
from presence.protocol import Kind
from presence.rosters import PresenceRosters
from tests.support.line import Line
from tests.support.preloaded import PreloadedServer

CLIENTS = 40  # on both workers; a user has two
FRIENDS = [f"friend-{number}" for number in range(60)]
FLAGS = "--workers", "2", "--idle-timeout", "300", "--packet-rate", "1000"
RETURNED_S = 20.0  # after Redis is back: the backoff of the control channel, and a read that was repeated
TOLD_S = 2.0  # after a change, on a busy machine


class Backend:
    """Changes rosters at random, and knows what Redis has acknowledged."""

    def __init__(self, url: str, users: list[str], seed: int) -> None:
        self.rosters = PresenceRosters(url)
        self.lists: dict[str, set[str]] = {uid: set() for uid in users}
        self.changes = self.failures = 0
        self._random = Random(seed)
        self._stop = threading.Event()

    def change(self) -> None:
        """Change one roster; a call that fails is repeated with the whole list."""
        uid = self._random.choice([*self.lists])
        wanted, some = self.lists[uid], set(self._random.sample(FRIENDS, self._random.randint(0, 12)))
        make: Callable[[], int]
        match self._random.choice(["put", "add", "remove", "change"]):
            case "put":
                wanted, make = some, lambda: self.rosters.put(uid, some)
            case "add":
                wanted, make = wanted | some, lambda: self.rosters.add(uid, some)
            case "remove":
                wanted, make = wanted - some, lambda: self.rosters.remove(uid, some)
            case _:
                gone = set(self._random.sample(FRIENDS, 10)) - some
                wanted, make = (wanted - gone) | some, lambda: self.rosters.change(uid, remove=gone, add=some)
        try:
            assert make() == len(wanted)
        except (StoreUnavailable, StoreError):
            self.failures += 1
            self._repeat(uid, wanted)
        self.lists[uid] = wanted
        self.changes += 1

    def _repeat(self, uid: str, wanted: set[str]) -> None:
        while True:
            try:
                self.rosters.put(uid, wanted)
            except (StoreUnavailable, StoreError):
                time.sleep(0.05)
            else:
                return

    @contextmanager
    def at_work(self, per_s: float) -> Iterator[None]:
        def work() -> None:
            while not self._stop.is_set():
                self.change()
                time.sleep(1 / per_s)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            yield
        finally:
            self._stop.set()
            worker.join()


class Watcher:
    """A client that follows its roster; with `batch` it takes rows."""

    def __init__(self, address: tuple[str, int], uid: str, device: str, *, batch: bool) -> None:
        self.uid = uid
        self.line = Line(address, protocol.login(uid, device=device, batch=batch))
        payload = self.line.ask(protocol.watch([], roster=True)).payload
        shown = payload.get(
            "presence", [row if isinstance(row, str) else row[0] for row in payload.get("states", ())]
        )
        self.watched = {*shown}
        self.heard: set[str] = set()  # whose changes it was told of, since the last look
        assert payload["roster"] == len(self.watched)

    def read(self, wait_s: float) -> None:
        for packet in self.line.gather(wait_s):
            if packet.kind == Kind.CHANGES:
                changes = [
                    (row[0], row[1], protocol.Code(row[2]).reason) for row in packet.payload["changes"]
                ]
            else:
                changes = [tuple(packet.payload[name] for name in ("uid", "status", "reason"))]
            for uid, status, reason in changes:
                if reason == "removed":
                    assert status == "removed"
                    assert uid in self.watched
                    self.watched.discard(uid)
                elif reason == "watched":
                    assert uid not in self.watched
                    self.watched.add(uid)
                else:
                    assert uid in self.watched, "no change of others"
                    self.heard.add(uid)


def follow_all(watchers: list[Watcher], backend: Backend, within_s: float) -> float:
    """Return after how many seconds all clients watch what their rosters have."""
    begun = time.monotonic()
    while True:
        for each in watchers:
            each.read(0.001)
        wrong = [each for each in watchers if each.watched != backend.lists[each.uid]]
        took_s = time.monotonic() - begun
        if not wrong:
            return took_s
        assert took_s < within_s, f"{len(wrong)} are not right: {wrong[0].uid}"


@pytest.mark.parametrize("is_cut", [True, False], ids=["connections are cut", "Redis restarts"])
def test_clients_watch_what_their_rosters_have(*, is_cut: bool) -> None:
    users = [f"user-{number}" for number in range(CLIENTS // 2)]
    with ExitStack() as stack:
        redis = stack.enter_context(LocalRedis(keep=True))
        server = stack.enter_context(PreloadedServer(*FLAGS, "--redis", redis.url))
        backend = Backend(redis.url, users, seed=5)
        stack.callback(backend.rosters.close)
        for _ in users:
            backend.change()
        watchers = [
            Watcher(server.address, uid, device, batch=device == "b") for uid in users for device in "ab"
        ]
        for each in watchers:
            stack.callback(each.line.close)
        with backend.at_work(per_s=200):
            for _ in range(5):
                time.sleep(0.6)
                if is_cut:
                    redis.client.client_kill_filter(_type="pubsub")
                else:
                    redis.kill()
                    time.sleep(0.3)
                    redis.start()
                for each in watchers:
                    each.read(0.001)
        took_s = follow_all(watchers, backend, RETURNED_S)
        assert backend.changes > 100
        print(f"{backend.changes} changes, {backend.failures} failed calls; all right after {took_s:.2f} s")
        for _ in range(20):
            backend.change()
        follow_all(watchers, backend, TOLD_S)
        friends = [Line(server.address, protocol.login(uid)) for uid in FRIENDS]
        for friend in friends:
            stack.callback(friend.close)
        deadline = time.monotonic() + RETURNED_S
        while any(each.heard != each.watched for each in watchers):
            assert time.monotonic() < deadline, "a change of a watched user did not come"
            for each in watchers:
                each.read(0.001)
