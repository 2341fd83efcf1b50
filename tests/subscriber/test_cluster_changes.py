"""A subscriber while slots move and primaries are replaced: what it holds is what Redis holds."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from loadtest.redis_cluster import Cluster
from presence.reader import PresenceReader
from presence.store.keys import Keys
from presence.subscriber import follow_sync
from tests.subscriber.people import SHARDS, People, View

KEYS = Keys(shards=SHARDS)


def followed(url: str, change: Callable[[People], object]) -> tuple[People, View, set[str]]:
    """Follow users while the cluster changes; return who made the users, the view, and who is online."""
    view = View()
    with People(url) as people, follow_sync(url) as events, ThreadPoolExecutor(1) as aside:
        while not view.snapshots:
            view.follow(events)
        changing = aside.submit(change, people)
        while not changing.done():
            view.follow(events)
        changing.result()
        people.stop()
        view.follow(events, until_quiet=True)
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


@pytest.fixture(scope="module")
def replicated() -> Iterator[Cluster]:
    with Cluster(3, 1) as cluster:
        yield cluster


def test_a_view_is_what_redis_holds_after_a_failover_as_told(replicated: Cluster) -> None:
    def change(people: People) -> None:
        people.wait_for(50)
        replicated.fail_over(replicated.primary_of(KEYS.events(0)), is_graceful=True)
        people.wait_for(50)

    people, view, read = followed(replicated.url, change)
    assert people.refused > 0, "it was felt"
    assert view.online == read == people.online
    assert view.gaps == 0, "nothing is lost"


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
