"""Who is online, and then what follows, without a hole between, while users come and go."""

import random
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from presence.core.changes import Op
from presence.core.profiles import Profile
from presence.protocol.constants import STATUSES
from presence.reader import PresenceReader
from presence.store.keys import Keys
from presence.store.redis_client import Redis, open_client
from presence.subscriber import (
    Away,
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
from tests.store.nodes import ManualNode
from tests.subscriber.streams import Streams

USERS = 400
MEANWHILE = 50  # transitions of a crowd


class MovingUsers:
    """Users who come, go and change through the real store, in a thread."""

    def __init__(self, url: str, shards: int) -> None:
        self.node = ManualNode(url, shards=shards)
        self.node.store.check_meta()
        self._chance = random.Random(7)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.transitions = 0
        for n in range(0, USERS, 2):
            self.node.login(f"user-{n}")
        self._settle()

    def _settle(self) -> None:
        while self.node.round():
            self.node.now += 0.001

    def _run(self) -> None:
        while not self._end.is_set():
            uid = f"user-{self._chance.randrange(USERS)}"
            if not self.node.is_online(uid):
                self.node.login(uid)
            elif self._chance.random() < 0.5:
                self.node.end(uid)
            else:
                profile = Profile(
                    self._chance.choice(STATUSES), self._chance.choice(("", '{"v":1}', '{"v":2}'))
                )
                live = self.node.live[uid, ""]
                self.node.outbox.append(live._replace(op=Op.UPDATE, code=5, profile=profile))
            self._settle()
            self.transitions += 1

    def __enter__(self) -> "MovingUsers":
        self._thread.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.stop()
        self.node.store.close()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()


def at(url: str, positions: Mapping[int, str]) -> tuple[dict[str, Period], dict[str, Shown]]:
    """Return, from the streams alone, the users online at these positions and their states."""
    online: dict[str, Period] = {}
    shown: dict[str, Shown] = {}
    with open_client(url) as client:
        for shard, position in positions.items():
            entries: Any = client.xrange(Keys().events(shard), max=position)
            for raw in entries:
                match decode(read_entry(shard, raw)):
                    case Online() as event:
                        online[event.uid] = Period(event.since_ms, event.id)
                        shown[event.uid] = Shown(
                            event.status, event.since_ms, event.meta, invisible=event.invisible
                        )
                    case Away() as event:
                        shown[event.uid] = Shown(event.status, event.at_ms, event.meta)
                    case Updated() as event:
                        shown[event.uid] = Shown(
                            event.status, event.status_ms, event.meta, invisible=event.invisible
                        )
                    case Offline() as event:
                        del online[event.uid], shown[event.uid]
                    case other:
                        raise AssertionError(other)
    return online, {uid: how for uid, how in shown.items() if how != Shown("online", how.since_ms)}


KINDS = ("Online", "Offline", "Away", "Updated")


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "USERS_PER_PAGE", 10)


@pytest.mark.parametrize("shards", [1, 16])
@pytest.mark.usefixtures("small_pages")
def test_each_snapshot_is_exact_though_users_change_between_its_pages_and_what_follows_is_the_rest(
    url: str, shards: int
) -> None:
    different, counts = 0, Counter[str]()
    with MovingUsers(url, shards) as crowd:
        for last in [False] * 9 + [True]:
            before = crowd.transitions
            with follow_sync(url, updates=True) as events:
                snapshot_seen = next(events)
                assert isinstance(snapshot_seen, Snapshot)
                different += (snapshot_seen.online, snapshot_seen.shown) != at(url, snapshot_seen.positions)
                counts["meanwhile"] += crowd.transitions - before
                online = set(snapshot_seen.online)
                while last:
                    if counts.total() > counts["meanwhile"] + MEANWHILE and all(
                        counts[each] for each in KINDS
                    ):
                        crowd.stop()
                    if (event := events.poll()) is None and crowd.is_over:
                        break
                    counts[type(event).__name__] += 1
                    if isinstance(event, Online):
                        assert event.uid not in online
                        online.add(event.uid)
                    elif isinstance(event, Offline):
                        online.remove(event.uid)
    with PresenceReader(url) as reader:
        read = {uid for page in reader.pages() for uid in page.states}
    print(f"snapshots, S = {shards}: 10 in small pages, {different} not exact; then {counts}")
    assert different == 0
    assert counts["meanwhile"] > MEANWHILE, "changes went on"
    assert online == read == {uid for uid, _ in crowd.node.live}


@pytest.mark.usefixtures("small_pages")
def test_without_the_events_meanwhile_pages_would_not_be_exact(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the test above."""
    monkeypatch.setattr(snapshot, "_apply", lambda *_: None)
    different = 0
    with MovingUsers(url, 1):
        for _ in range(10):
            with follow_sync(url) as events:
                snapshot_seen = next(events)
            assert isinstance(snapshot_seen, Snapshot)
            different += snapshot_seen.online != at(url, snapshot_seen.positions)[0]
    print(f"pages without the events meanwhile: {different} of 10 not exact")
    assert different > 0


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


def test_a_view_that_does_not_ask_hears_of_transitions_only(url: str, client: Redis) -> None:
    streams = Streams(client)
    session = '{"session":"s","node":"n","login_ms":1,"meta":"{\\"v\\":1}"}'
    client.hset(streams.keys.online(0), "ann", f'{{"id":"9-0","since_ms":5,"sessions":{{"":{session}}}}}')
    with follow_sync(url, updates=True) as events:
        snapshot_seen = next(events)
        assert isinstance(snapshot_seen, Snapshot)
        assert snapshot_seen.shown == {"ann": Shown("online", 5, {"v": 1})}
    with follow_sync(url) as events:
        assert next(events) == Snapshot({"ann": Period(5, "9-0")}, {0: "0-0"})
        streams.write("ann", kind="away")
        streams.write("ann", kind="offline")
        assert isinstance(next(events), Offline)
