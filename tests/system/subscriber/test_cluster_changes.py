"""A subscriber while slots move and primaries are replaced: what it holds is what Redis holds."""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from presence.reader import PresenceReader
from presence.store.keys import Keys
from presence.store.redis_client import RedisError
from presence.store.shard_clients import ShardClients
from presence.subscriber import follow_sync, redis_connections, subscribe_sync
from tests.subscriber.people import SHARDS, People, View
from tests.subscriber.streams import Streams, uids
from tests.support.redis_cluster import Cluster

KEYS = Keys(shards=SHARDS)


def followed(url: str, change: Callable[[People], object]) -> tuple[People, View, set[str]]:
    """Follow users while the cluster changes; return what made the users, the view, and the online users."""
    view = View()
    with People(url) as people, follow_sync(url) as events, ThreadPoolExecutor(1) as aside:
        while not view.snapshots:
            view.follow(events)
        changing = aside.submit(change, people)
        while not changing.done():
            view.follow(events)
        changing.result()
        view.follow_until(people.finish(), events)
    with PresenceReader(url) as reader:
        read = {uid for page in reader.pages() for uid in page.states}
    print(
        f"{people.transitions} transitions, {people.refused} refused: {view.snapshots} snapshots, "
        f"{view.gaps} gaps, difference {len(view.online ^ read)}"
    )
    return people, view, read


def test_a_view_is_what_redis_holds_after_every_slot_moved(redis_cluster: Cluster) -> None:
    def change(people: People) -> None:
        for shard in range(SHARDS):
            people.wait_for(20)
            source = redis_cluster.primary_of(KEYS.events(shard))
            target = random.choice([each for each in redis_cluster.members if each is not source])
            redis_cluster.move(KEYS.events(shard), target).run()

    people, view, read = followed(redis_cluster.url, change)
    assert people.refused > 0, "it was felt"
    assert view.online == read == people.online
    assert (view.snapshots, view.gaps) == (1, 0)


@pytest.fixture
def replicated() -> Iterator[Cluster]:
    """A cluster of this test's own: one that lost a member has no replica for the next."""
    with Cluster(3, 1) as cluster:
        yield cluster


def test_a_view_is_what_redis_holds_after_a_failover_that_lost_writes(replicated: Cluster) -> None:
    def change(people: People) -> None:
        primary = replicated.primary_of(KEYS.events(0))
        (replica,) = replicated.replicas_of(primary)
        replica.freeze()
        primary.call("CLIENT", "KILL", "TYPE", "replica")  # what it has not read is not sent again
        people.wait_for(100)
        primary.kill()
        replica.thaw()
        replicated.wait_until_ok()
        people.wait_for(50)

    people, view, read = followed(replicated.url, change)
    assert people.refused > 0, "it was felt"
    assert view.gaps > 0, "writes are lost, and it was told"
    assert view.online == read


@pytest.fixture(scope="module")
def partial() -> Iterator[Cluster]:
    """A cluster whose servers go on while one of them is away."""
    with Cluster(options=("--cluster-require-full-coverage", "no")) as cluster:
        yield cluster


@pytest.mark.parametrize("group", [None, "g"], ids=["alone", "in a group"])
def test_a_server_that_is_away_delays_events_of_its_shards_only(
    partial: Cluster,
    group: str | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_connections, "CALL_TIMEOUT_S", 0.3)
    for member in partial.members:
        member.call("FLUSHALL")
    away = next(each for each in partial.members if each is not partial.primary_of(KEYS.meta))
    with (
        ShardClients(partial.url) as access,
        subscribe_sync(partial.url, group=group, consumer=group) as events,
    ):
        streams = Streams(access, SHARDS)
        others = [f"u{n}" for n in range(60) if partial.primary_of(streams.key_of(f"u{n}")) is not away]
        assert events.poll() is None
        late = [f"u{n}" for n in range(60) if f"u{n}" not in others]
        streams.write(*late)
        away.freeze()
        streams.write(*others)
        started = time.monotonic()
        came: list[str] = []
        while not set(others) <= set(came):
            came += uids([event]) if (event := events.poll()) else []
            assert time.monotonic() < started + 15
        seconds = time.monotonic() - started
        away.thaw()
        while len(came) < 60:
            came += uids([event]) if (event := events.poll()) else []
            assert time.monotonic() < started + 30
        if group:
            assert events.poll() is None
            assert streams.pending() == 0
    lost, back = (record.getMessage() for record in caplog.records)
    print(
        f"one of three servers is away: events of the others came within {seconds:.2f} s, {group or 'alone'}"
    )
    assert sorted(came) == sorted([*others, *late])
    assert lost.startswith("lost shards [")
    assert back.endswith("are reachable again")


def test_a_reader_tells_of_users_while_the_server_that_knows_of_shards_and_leases_is_away(
    partial: Cluster,
) -> None:
    away = partial.primary_of(KEYS.meta)
    shards = [s for s in range(SHARDS) if partial.primary_of(KEYS.online(s)) is not away]
    if partial.primary_of(KEYS.nodes) is not away:
        partial.move(KEYS.nodes, away).run()
    record = '{"id":"1-0","since_ms":5,"sessions":{"":{"session":"s","node":"n","login_ms":1}}}'
    uids = [f"user-{n}" for n in range(60) if KEYS.shard(f"user-{n}") in shards]
    with ShardClients(partial.url) as access, PresenceReader(partial.url) as reader:
        access.at(KEYS.meta).hset(KEYS.meta, "shards", SHARDS)
        for uid in uids:
            key = KEYS.online(KEYS.shard(uid))
            access.at(key).hset(key, uid, record)
        assert reader.state(uids[0])["status"] == "unknown", "it has no lease"
        away.kill()
        assert {state["status"] for state in reader.states(uids).values()} == {"online"}
        with pytest.raises(RedisError):
            reader.count()
    partial.start(away)
    partial.wait_until_ok()
