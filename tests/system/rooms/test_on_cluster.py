"""Rooms on a real Redis Cluster: slots move, primaries hand over and die, a server is away.

Clients of a server go from room to room, and others watch. Meanwhile a reader asks for a room that its only
member never leaves.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest
import trio

from loadtest.room_members import MemberDifference, differences, recorded_members, stored_members
from loadtest.servers import PresenceServer
from presence import protocol
from presence.reader import PresenceReader
from presence.rooms.projector import RoomProjector
from presence.rooms.rebuild import rebuild_rooms
from presence.store.error_classes import passes
from presence.store.keys import Keys
from presence.store.redis_client import RedisError
from presence.store.shard_clients import ShardClients
from tests.support.line import Line
from tests.support.preloaded import PreloadedServer
from tests.support.redis_cluster import Cluster
from tests.system.chaos.rooms import RoomEntries, room_entry
from tests.system.watching.room_crowd import Crowd
from tests.system.watching.test_watched_rooms import Watcher

KEYS = Keys(shards=16)
FLAGS = (
    *(
        "--rooms",
        "open",
        "--max-listed-members",
        "50",
        "--room-events",
        "all",
        "--workers",
        "2",
        "--lease",
        "2",
    ),
    *("--idle-timeout", "300", "--packet-rate", "1000"),
)
ALWAYS = "always"
HALF_MOVED_S = 0.05  # each slot has some of its keys here and some there for so long
AWAY_S = 5.0
AWAY_ROOMS_S = 8.0  # two calls that hang, of the projector and of the worker, on a busy machine
RIGHT_S = 20.0  # after the last change, on a busy machine


@pytest.fixture
def replicated() -> Iterator[Cluster]:
    """A cluster of this test's own: one that lost a member has no replica for the next."""
    with Cluster(3, 1) as cluster:
        yield cluster


class Reads:
    """Reads a room all the time: an answer is right, or there is none."""

    def __init__(self, cluster: Cluster) -> None:
        self._url = cluster.url
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answered = self.failed = 0
        self.wrong: list[Any] = []

    def __enter__(self) -> "Reads":
        self._thread.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        with PresenceReader(self._url) as reader:
            while not self._end.wait(0.01):
                try:
                    found = reader.room(ALWAYS).count, [*reader.members(ALWAYS).members]
                except RedisError as error:
                    self.failed += 1
                    if not passes(error):
                        self.wrong.append(error)
                else:
                    self.answered += 1
                    if found != (1, ["resident"]):
                        self.wrong.append(found)


def client_of(cluster: Cluster) -> Callable[[str], Any]:
    return lambda key: cluster.primary_of(key).client


def differing_members(cluster: Cluster) -> set[MemberDifference]:
    """Return the members of rooms that are not those of the records."""
    stored, recorded = (each(client_of(cluster), KEYS) for each in (stored_members, recorded_members))
    return differences(stored, recorded)


def entries_broken(cluster: Cluster) -> list[object]:
    """Return what is wrong with the entries of rooms: those of each alternate, with the right counts."""
    judge = RoomEntries()
    keys = [KEYS.room_events(shard) for shard in range(KEYS.shards)]
    rows = [row for key in keys for row in client_of(cluster)(key).xrange(key)]
    return [broken for row in rows for broken in judge.check_entry(room_entry(row, 0.0))]


def move_key_by_key(cluster: Cluster) -> None:
    with ShardClients(cluster.url) as clients:
        for shard in range(KEYS.shards):
            source = cluster.primary_of(KEYS.events(shard))
            target = next(each for each in cluster.members if each is not source)
            move = cluster.move(KEYS.events(shard), target)
            move.begin()
            move.step()
            if shard % 4 == 0:
                with suppress(RedisError):
                    rebuild_rooms(clients, KEYS, 0.0)
            time.sleep(HALF_MOVED_S)
            while move.step():
                pass
            move.finish()


def move_in_one_step(cluster: Cluster) -> None:
    for shard in range(KEYS.shards):
        source = cluster.primary_of(KEYS.events(shard))
        target = next(each for each in cluster.members if each is not source)
        cluster.move_atomically([cluster.slot_of(KEYS.events(shard))], target)


def hand_over_and_kill(cluster: Cluster) -> None:
    for primary in cluster.primaries():
        cluster.fail_over(primary, is_graceful=True)
    cluster.fail_over(cluster.primary_of(KEYS.room(ALWAYS)))


async def run(cluster: Cluster, change: Callable[[Cluster], None]) -> PresenceServer:
    """Let clients move from room to room while a cluster changes; all must be right in the end."""
    with PreloadedServer(*FLAGS, "--redis", cluster.url) as server, ExitStack() as stack:
        resident = Line(server.address, protocol.login("resident", rooms=[ALWAYS]))
        stack.callback(resident.close)
        watcher = Watcher(server.address, ALWAYS)
        stack.callback(watcher.line.close)
        watcher.sees(ALWAYS, 1, "resident")
        async with trio.open_nursery() as nursery:
            crowd = Crowd(server.address, seed=7)
            await crowd.enter(12, 6, nursery)
            await crowd.move(1.0)
            began = time.monotonic()
            with Reads(cluster) as reads:
                async with trio.open_nursery() as moving:
                    moving.start_soon(crowd.move, 120.0)
                    await trio.to_thread.run_sync(change, cluster)
                    moving.cancel_scope.cancel()
            changed_s = time.monotonic() - began
            await crowd.settle()
            began = time.monotonic()
            while wrong := [*crowd.wrong(), *await trio.to_thread.run_sync(differing_members, cluster)]:
                assert time.monotonic() - began < RIGHT_S, (wrong[:2], crowd.expected())
                await trio.sleep(0.1)
            print(
                f"{change.__name__} in {changed_s:.1f} s: right {time.monotonic() - began:.1f} s after it; "
                f"{reads.answered} reads answered, {reads.failed} not"
            )
            nursery.cancel_scope.cancel()
        assert watcher.read() == [], "nothing has changed in this room"
        server.stop()
    assert reads.wrong == []
    assert reads.answered > 0
    assert entries_broken(cluster) == []
    assert server.failures() == []
    return server


@pytest.mark.parametrize("change", [move_key_by_key, move_in_one_step])
async def test_rooms_are_right_while_all_slots_move(
    redis_cluster: Cluster, change: Callable[[Cluster], None]
) -> None:
    server = await run(redis_cluster, change)
    assert server.report["rooms"]["differences"] == 0
    assert server.report["rooms"]["gaps"] == 0


async def test_rooms_are_right_after_replicas_have_taken_over(replicated: Cluster) -> None:
    await run(replicated, hand_over_and_kill)


def test_a_server_that_is_away_delays_its_rooms_and_the_events_of_its_users_only() -> None:
    options = "--cluster-require-full-coverage", "no"
    with Cluster(options=options) as cluster, PreloadedServer(*FLAGS, "--redis", cluster.url) as server:
        away = cluster.primary_of(KEYS.events(0))
        names = [f"n{number}" for number in range(1000)]
        here = next(n for n in names if cluster.primary_of(KEYS.events(KEYS.shard(n))) is not away)
        there = next(n for n in names if KEYS.shard(n) == 0)
        watcher = Watcher(server.address, here, there)
        line = Line(server.address, protocol.login(here, rooms=[there]))
        watcher.sees(there, 1, here)
        away.freeze()
        slowest_s, until = 0.0, time.monotonic() + AWAY_S
        while time.monotonic() < until:
            for joins in (True, False):
                began = time.monotonic()
                line.ask(protocol.update(rooms=[here] if joins else []))
                watcher.sees(here, int(joins), *([here] if joins else []), within_s=RIGHT_S)
                slowest_s = max(slowest_s, time.monotonic() - began)
        away.thaw()
        began = time.monotonic()
        watcher.sees(there, 0, within_s=RIGHT_S)
        print(
            f"one of three servers hangs: rooms of the others are told within {slowest_s:.2f} s, "
            f"its own {time.monotonic() - began:.2f} s after its return"
        )
        line.close()
        watcher.line.close()
        assert slowest_s < AWAY_ROOMS_S


# A rebuild, driven by hand

USERS = 3000  # several pages of a rebuild


def move_in_the_middle(cluster: Cluster, projector: RoomProjector, counted: Callable[[], int]) -> None:
    """Run a rebuild; move the slot of the only shard when a part of the users is counted."""
    state, client = Keys(shards=1).rooms_state(0), client_of(cluster)
    client(state).hset(state, "rebuild", "wish")
    with closing(projector):
        wait_until(projector, lambda: counted() > 0)
        assert counted() < USERS, "the middle"
        source = cluster.primary_of(state)
        target = next(each for each in cluster.members if each is not source)
        cluster.move_atomically([cluster.slot_of(state)], target)
        wait_until(projector, lambda: client(state).hget(state, "rebuild") is None)
        shard = Keys(shards=1).room_sources(0)
        wait_until(
            projector, lambda: client(state).hget(state, "walked") == client(shard).hget(shard, "walk")
        )


def test_a_rebuild_leaves_no_user_out_whose_record_moves_meanwhile(redis_cluster: Cluster) -> None:
    """The cursor of a scan means nothing to another server: its hashes are in another order."""
    keys, client = Keys(shards=1), client_of(redis_cluster)
    names = {f"user-{number}" for number in range(USERS)}
    sessions = '{"":{"session":"s","node":"n","login_ms":1,"rooms":"lobby"}}'
    record = f'{{"id":"1-0","since_ms":1,"sessions":{sessions}}}'
    client(keys.online(0)).hset(keys.online(0), mapping=dict.fromkeys(names, record))
    client(keys.shard_meta(0)).hset(keys.shard_meta(0), "rooms", "1")
    projector = RoomProjector(redis_cluster.url, shards=1)
    move_in_the_middle(redis_cluster, projector, lambda: projector.counters.joined)
    assert stored_members(client, keys)["lobby"].keys() == names


def test_a_rebuild_leaves_nobody_in_a_room_that_moves_meanwhile(redis_cluster: Cluster) -> None:
    keys, client = Keys(shards=1), client_of(redis_cluster)
    members = {f"user-{number}": "5-0 -" for number in range(USERS)}
    client(keys.room("lobby")).hset(keys.room("lobby"), mapping={" o": "5-0", **members})
    client(keys.room_sizes(0)).zadd(keys.room_sizes(0), {"lobby": USERS})
    client(keys.room_sources(0)).hset(keys.room_sources(0), "members", USERS)
    client(keys.shard_meta(0)).hset(keys.shard_meta(0), "rooms", "1")
    projector = RoomProjector(redis_cluster.url, shards=1)
    move_in_the_middle(redis_cluster, projector, lambda: projector.counters.left)
    assert stored_members(client, keys) == {}


def wait_until(projector: RoomProjector, condition: Callable[[], bool]) -> None:
    """Run a projector until a condition holds."""
    give_up = time.monotonic() + RIGHT_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(min(projector.run_once(), 0.05))
