"""Who is online, and then what follows, without a hole between, while users come and go."""

import math
import random
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from presence.changes import Profile
from presence.reader import PresenceReader
from presence.store.client import Redis, open_client
from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from presence.subscriber import (
    Away,
    BlockingSubscription,
    Event,
    Gap,
    Offline,
    Online,
    Period,
    Shown,
    Snapshot,
    Updated,
    follow_sync,
    snapshot,
)
from presence.subscriber.events import decode, read_entry
from tests.store.driving import Hand, end, login, update
from tests.store.nodes import ManualNode
from tests.subscriber.streams import Streams

USERS = 4000
RATE_PER_S = 200
SLOW_S = 30.0  # how long a slow machine may take for what takes seconds
Followed = Snapshot | Event


class Crowd:
    """Users who come and go through the real store, in a thread of its own."""

    def __init__(self, url: str, shards: int, pause_s: float) -> None:
        self._node = ManualNode(url, shards=shards)
        self._node.store.check_meta()
        self._pause_s = pause_s
        self._random = random.Random(7)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.transitions = 0
        for n in range(0, USERS, 2):
            self._node.login(f"user-{n}")
        self._settle()

    def _settle(self) -> None:
        while self._node.round():
            self._node.now += 0.001

    def _run(self) -> None:
        due = time.monotonic()
        while not self._end.is_set():
            uid = f"user-{self._random.randrange(USERS)}"
            act = self._node.end if self._node.is_online(uid) else self._node.login
            act(uid)
            self._settle()
            self.transitions += 1
            due += self._pause_s
            time.sleep(max(0.0, due - time.monotonic()))

    @property
    def online(self) -> set[str]:
        return {uid for n in range(USERS) if self._node.is_online(uid := f"user-{n}")}

    def __enter__(self) -> "Crowd":
        self._thread.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()
        self._node.store.close()


class View:
    """Who is online, as a program keeps it by what it is given."""

    def __init__(self) -> None:
        self.online: set[str] = set()
        self.counts: dict[str, int] = {}

    def take(self, event: Followed) -> None:
        self.counts[type(event).__name__] = self.counts.get(type(event).__name__, 0) + 1
        match event:
            case Snapshot():
                self.online = set(event.online)
            case Online():
                assert event.uid not in self.online
                self.online.add(event.uid)
            case Offline():
                self.online.remove(event.uid)
            case Gap():
                pass

    def take_all(self, events: BlockingSubscription[Followed], seconds: float = math.inf) -> None:
        """Take what comes for so long, or until nothing comes."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if (event := events.poll()) is not None:
                self.take(event)
            elif math.isinf(seconds):
                return


@pytest.fixture
def server_hand(url: str) -> Iterator[Hand]:
    """A node that a test moves by hand."""
    store = RedisStore(url, Shape(Keys(), maxlen=1_000_000, seen_retention_ms=10**13))
    store.check_meta()
    hand = Hand(store, "a")
    hand.open()
    yield hand
    store.close()


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "USERS_PER_PAGE", 10)


@pytest.mark.parametrize("shards", [1, 16])
def test_the_view_is_the_readers_while_200_transitions_a_second_go_on(url: str, shards: int) -> None:
    view = View()
    with Crowd(url, shards, 1 / RATE_PER_S) as crowd, follow_sync(url) as events:
        view.take_all(events, 3.0)
        deadline = time.monotonic() + SLOW_S
        while crowd.transitions <= 2 * RATE_PER_S and time.monotonic() < deadline:
            view.take_all(events, 0.5)
        crowd.stop()
        view.take_all(events)
    with PresenceReader(url) as reader:
        read = {uid for page in reader.pages() for uid in page.states}
        count = reader.count()
    print(
        f"snapshot then follow, S = {shards}: {len(read)} of {USERS} users online, {crowd.transitions} "
        f"transitions meanwhile, {view.counts}: difference {len(view.online ^ read)}"
    )
    assert crowd.transitions > 2 * RATE_PER_S, "changes went on"
    assert view.counts["Snapshot"] == 1
    assert view.online == read == crowd.online
    assert count == len(read)


def online_at(url: str, positions: Mapping[int, str]) -> dict[str, Period]:
    """Return who was online at these places of the streams, from the streams alone."""
    online: dict[str, Period] = {}
    with open_client(url) as client:
        for shard, position in positions.items():
            entries: Any = client.xrange(Keys().events(shard), max=position)
            for raw in entries:
                match decode(read_entry(shard, raw)):
                    case Online() as event:
                        online[event.uid] = Period(event.since_ms, event.id)
                    case Offline() as event:
                        del online[event.uid]
                    case other:
                        raise AssertionError(other)
    return online


@pytest.mark.parametrize("shards", [1, 16])
@pytest.mark.usefixtures("small_pages")
def test_each_snapshot_is_exact_though_users_come_and_go_between_its_pages(url: str, shards: int) -> None:
    different = during = 0
    with Crowd(url, shards, 0.0) as crowd:
        for _ in range(10):
            before = crowd.transitions
            with follow_sync(url) as events:
                taken = next(events)
            during += crowd.transitions - before
            assert isinstance(taken, Snapshot)
            different += taken.online != online_at(url, taken.positions)
    print(
        f"snapshots, S = {shards}: 10 in small pages, {during} transitions meanwhile, {different} not exact"
    )
    assert during > 50, "changes went on"
    assert different == 0


def test_a_gap_is_followed_by_a_new_snapshot(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.write("old")
    with follow_sync(url) as events:
        assert isinstance(next(events), Snapshot)
        streams.write(*(f"u{n}" for n in range(100)))
        client.hset(streams.keys.online(0), "ann", '{"id":"9-0","since_ms":5,"sessions":{"":{}}}')
        client.xtrim(streams.keys.events(0), maxlen=10, approximate=False)
        assert next(events) == Gap(0, "1-0", "trimmed")
        again = next(events)
        assert again == Snapshot({"ann": Period(5, "9-0")}, {0: "101-0"})
        streams.write("new")
        event = next(events)
        assert isinstance(event, Online)
        assert event.uid == "new"


@pytest.mark.parametrize("record", ["no json", "[]", "{}", '{"id":"1-1","since_ms":1,"sessions":{}}'])
def test_a_damaged_record_counts_as_absent(url: str, client: Redis, record: str) -> None:
    client.hset(Keys().online(0), "eve", record)
    assert next(follow_sync(url)) == Snapshot({}, {0: "0-0"})


@pytest.mark.usefixtures("small_pages")
def test_without_the_events_meanwhile_pages_would_not_be_exact(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the test above."""
    monkeypatch.setattr(snapshot, "_apply", lambda *_: None)
    different = 0
    with Crowd(url, 1, 0.0):
        for _ in range(10):
            with follow_sync(url) as events:
                taken = next(events)
            assert isinstance(taken, Snapshot)
            different += taken.online != online_at(url, taken.positions)
    print(f"pages without the events meanwhile: {different} of 10 not exact")
    assert different > 0


def test_a_view_that_asks_for_it_says_how_users_show_themselves(url: str, server_hand: Hand) -> None:
    away, said = Profile(away=True), Profile(meta='{"v":1}')
    server_hand.apply(login("ann", "s1", at_ms=1000), login("bob", "s2", at_ms=1000, profile=said))
    server_hand.apply(login("cy", "s3"), update("ann", "s1", at_ms=2000, profile=away))
    with follow_sync(url, updates=True) as events:
        taken = next(events)
        assert isinstance(taken, Snapshot)
        assert set(taken.online) == {"ann", "bob", "cy"}
        assert taken.shown == {"ann": Shown("away", 2000), "bob": Shown("online", 1000, {"v": 1})}
        server_hand.apply(update("cy", "s3", profile=said), update("ann", "s1"))
        assert [type(next(events)) for _ in range(2)] == [Updated, Away]


def test_a_view_that_does_not_ask_hears_of_transitions_only(url: str, server_hand: Hand) -> None:
    server_hand.apply(login("ann", "s1", profile=Profile(meta="{}")))
    with follow_sync(url) as events:
        taken = next(events)
        assert isinstance(taken, Snapshot)
        assert taken.shown == {}
        server_hand.apply(update("ann", "s1", profile=Profile(away=True)), end("ann", "s1"))
        assert isinstance(next(events), Offline)


@pytest.mark.usefixtures("small_pages")
def test_what_is_shown_is_exact_though_users_change_between_pages(url: str, server_hand: Hand) -> None:
    users = range(400)
    server_hand.apply(*(login(f"u{n}", f"s{n}", profile=Profile(away=n % 2 == 0)) for n in users))
    stop = threading.Event()

    def change() -> None:
        chance = random.Random(3)
        while not stop.is_set():
            n = chance.randrange(400)
            profile = Profile(chance.random() < 0.5, chance.choice(("", '{"v":1}', '{"v":2}')))
            op = chance.choice((update, update, login, end))
            server_hand.apply(op(f"u{n}", f"s{n}", at_ms=1000 + chance.randrange(1000), profile=profile))

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(10):
            with follow_sync(url, updates=True) as events:
                taken = next(events)
            assert isinstance(taken, Snapshot)
            assert taken.shown == shown_at(url, taken.positions[0])
    finally:
        stop.set()
        thread.join()


def shown_at(url: str, position: str) -> dict[str, Shown]:
    """Return how users showed themselves at this place of the stream, from the stream alone."""
    shown: dict[str, Shown] = {}
    with open_client(url) as client:
        entries: Any = client.xrange(Keys().events(0), max=position)
    for raw in entries:
        match decode(read_entry(0, raw)):
            case Online() as event:
                shown[event.uid] = Shown(event.status, event.since_ms, event.meta)
            case Away() as event:
                shown[event.uid] = Shown(event.status, event.at_ms, event.meta)
            case Updated() as event:
                shown[event.uid] = Shown(event.status, event.status_ms, event.meta)
            case Offline() as event:
                del shown[event.uid]
    return {uid: how for uid, how in shown.items() if how.status == "away" or how.meta}
