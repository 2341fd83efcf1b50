"""Watches on a real Redis Cluster: the shard gets another server, and watchers hear what happens there."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest
import trio

from presence.common.runtime import LoopCaller
from presence.core.registry import Session
from presence.core.service_requests import WatchRequest
from presence.outbox.replies import ReplyStatus
from presence.protocol import Packet
from presence.store.control_channel import ChangedRosters, ControlChannel
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.roster_table import RosterChange, RosterTable, StoredRosters
from presence.store.script_arguments import Shape
from presence.store.watch_connection import WatchServers
from presence.store.watch_reads import StoredStates
from presence.watching.watch_service import Watching
from tests.store.driving import Hand, end, login
from tests.support.redis_cluster import Cluster
from tests.watching.fakes import Line, session

KEYS = Keys()  # one shard, on one of the primaries
PATIENCE_S = 20.0


@pytest.fixture
def replicated() -> Iterator[Cluster]:
    """A cluster of this test's own: one that lost a member has no replica for the next."""
    with Cluster(3, 1) as cluster:
        yield cluster


async def packets(line: Line, count: int) -> list[Packet]:
    found: list[Packet] = []
    with trio.fail_after(PATIENCE_S):
        while len(found) < count:
            found += line.packets()
            await trio.sleep(0.02)
    return found


def watch(watching: Watching, *uids: str) -> tuple[Session, Line]:
    watcher, line = session()
    watching.take(watcher, WatchRequest(1, list(uids)))
    return watcher, line


def write(node: Hand, generation: int, uid: str) -> None:
    """Let a user come and go, under a new generation: a failover starts another history."""
    node.store.apply([node.batch([], 1)])  # finds out where to go
    assert node.open(generation).status is ReplyStatus.OK
    node.apply(login(uid, f"s{generation}"))
    node.apply(end(uid, f"s{generation}"))


@pytest.mark.parametrize("graceful", [True, False], ids=["as told", "killed"])
async def test_watchers_follow_a_shard_to_its_new_server(replicated: Cluster, *, graceful: bool) -> None:
    replicated.wait_until_ok()
    store = RedisStore(replicated.url, Shape(KEYS, maxlen=1000, seen_retention_ms=10**13))
    watching = Watching(
        KEYS.shard,
        WatchServers(replicated.url, KEYS),
        StoredStates(replicated.url, KEYS),
        max_watches=10,
        memory_bytes=0,
        absence_s=40,
    )
    node, uid = Hand(store, f"node-{graceful}"), f"ann-{graceful}"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watching.run)
        _, line = watch(watching, uid)
        await packets(line, 1)
        write(node, 1, uid)
        assert [packet.payload["status"] for packet in await packets(line, 2)] == ["online", "offline"]
        primary = replicated.primary_of(KEYS.events(0))
        await trio.to_thread.run_sync(lambda: replicated.fail_over(primary, is_graceful=graceful))
        started = trio.current_time()
        await trio.to_thread.run_sync(write, node, 2, uid)
        pushed = await packets(line, 2)
        print(f"told of what happened at the new server after {trio.current_time() - started:.2f} s")
        assert [packet.payload["status"] for packet in pushed] == ["online", "offline"]
        nursery.cancel_scope.cancel()
    store.close()


async def test_nodes_on_any_server_hear_of_changed_rosters(redis_cluster: Cluster) -> None:
    url, keys = redis_cluster.url, Keys("rosters", 16)
    call = LoopCaller().call
    with (
        closing(RosterTable(url, keys, 10**9)) as table,
        closing(StoredRosters(url, keys)) as stored,
        closing(ControlChannel(url, keys)) as channel,
    ):
        await call(partial(channel.subscribe, "a"))
        users = [f"user-{number}" for number in range(40)]
        assert table.change([RosterChange(uid, (), [uid, "ann"]) for uid in users]) == [2] * 40
        assert await call(partial(stored.read, users)) == {uid: ("ann", uid) for uid in users}
        heard: set[str] = set()
        with trio.fail_after(PATIENCE_S):
            while heard != {*users}:
                for each in await call(channel.next):
                    assert isinstance(each, ChangedRosters)
                    heard |= {*each.uids}
