"""Rooms that clients of real workers watch, while members come and go, workers die and Redis restarts."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio

from loadtest.servers import LocalRedis, PresenceServer, wait_for
from presence import protocol
from presence.protocol import Kind
from presence.store.keys import Keys
from tests.rooms.keys_by_hand import HandMadeRooms
from tests.support.line import Line
from tests.support.preloaded import PreloadedServer
from tests.system.watching.room_crowd import Crowd

FLAGS = "--rooms", "open", "--max-listed-members", "50", "--idle-timeout", "300", "--packet-rate", "1000"
TOLD_S = 5.0  # after a change, on a busy machine
RETURNED_S = 20.0  # after a trouble: without hints it would be 30 s


class Watcher:
    """A connection that watches rooms, and what it was sent of them."""

    def __init__(self, address: tuple[str, int], *rooms: str, uid: str = "watcher") -> None:
        self.line = Line(address, protocol.login(uid))
        self.rooms: dict[str, tuple[int, set[str] | None]] = {}
        self._apply(self.line.ask(protocol.watch(rooms=[*rooms])).payload["rooms"])

    def _apply(self, rows: list[list[Any]]) -> None:
        for row in rows:
            name, count, *lists = row
            members = self.rooms.get(name, (0, None))[1]
            if len(lists) == 2:
                assert members is not None, "a difference follows from a list"
                assert members.isdisjoint(lists[0])
                assert members.issuperset(lists[1])
                members = (members | {*lists[0]}) - {*lists[1]}
            else:
                members = {*lists[0]} if lists else None
            self.rooms[name] = count, members

    def read(self, wait_s: float = 0.01) -> list[list[Any]]:
        """Return the rows that came, waiting for so long for more."""
        packets = self.line.gather(wait_s)
        assert {packet.kind for packet in packets} <= {Kind.ROOMS}
        rows = [row for packet in packets for row in packet.payload["rooms"]]
        self._apply(rows)
        return rows

    def sees(self, room: str, count: int, *members: str, within_s: float = TOLD_S) -> None:
        def is_right() -> bool:
            self.read()
            return self.rooms[room] == (count, {*members})

        assert wait_for(is_right, within_s), self.rooms[room]


@pytest.fixture(scope="module")
def server() -> Iterator[PresenceServer]:
    with LocalRedis() as redis, PreloadedServer(*FLAGS, "--redis", redis.url) as server:
        yield server


def test_clients_see_who_joins_and_leaves_and_how_many_there_are(server: PresenceServer) -> None:
    with ExitStack() as stack:
        watcher = Watcher(server.address, "lobby")
        stack.callback(watcher.line.close)
        assert watcher.rooms == {"lobby": (0, set())}
        ann = Line(server.address, protocol.login("ann", rooms=["lobby"]))
        stack.callback(ann.close)
        watcher.sees("lobby", 1, "ann")
        bob = Line(server.address, protocol.login("bob", status="invisible", rooms=["lobby"]))
        stack.callback(bob.close)
        ann.ask(protocol.update(status="away"))
        assert watcher.read(1.0) == [], "who is away, and who is invisible, is not pushed"
        bob.ask(protocol.update(status="online"))
        watcher.sees("lobby", 2, "ann", "bob")
        bob.ask(protocol.update(status="invisible"))
        watcher.sees("lobby", 1, "ann")
        answer = bob.ask(protocol.query(rooms=["lobby", "street"]))
        assert answer.payload == {"rooms": [["lobby", 1, ["ann"]], ["street", 0, []]]}
        ann.ask(protocol.update(leave=["lobby"]))
        watcher.sees("lobby", 0)
        watcher.line.ask(protocol.unwatch(rooms=["lobby"]))
        ann.ask(protocol.update(join=["lobby"]))
        assert watcher.read(1.0) == []


# Troubles


def kill_a_worker(server: PresenceServer, _redis: LocalRedis) -> None:
    os.kill(server.workers()[1], signal.SIGKILL)


def restart_redis(_server: PresenceServer, redis: LocalRedis) -> None:
    redis.kill()
    time.sleep(0.5)
    redis.start()


def empty_redis(_server: PresenceServer, redis: LocalRedis) -> None:
    redis.client.flushall()


def cut_channels(_server: PresenceServer, redis: LocalRedis) -> None:
    redis.client.client_kill_filter(_type="pubsub")


@pytest.mark.parametrize(
    ("trouble", "keep"),
    [
        (kill_a_worker, False),
        (restart_redis, True),
        (restart_redis, False),
        (empty_redis, False),
        (cut_channels, False),
    ],
)
async def test_after_a_trouble_clients_see_rooms_as_they_are(
    trouble: Callable[[PresenceServer, LocalRedis], None], *, keep: bool
) -> None:
    with LocalRedis(keep=keep) as redis:
        flags = *FLAGS, "--workers", "2", "--lease", "2", "--redis", redis.url
        with PreloadedServer(*flags) as server:
            async with trio.open_nursery() as nursery:
                crowd = Crowd(server.address, seed=7)
                await crowd.enter(12, 6, nursery)
                await crowd.move(2.0)
                nursery.start_soon(trio.to_thread.run_sync, trouble, server, redis)
                await crowd.move(3.0)
                await crowd.settle()
                began = time.monotonic()
                while crowd.wrong():
                    assert time.monotonic() - began < RETURNED_S, (crowd.wrong()[0], crowd.expected())
                    await trio.sleep(0.1)
                print(f"{trouble.__name__}: right {time.monotonic() - began:.1f} s after the last change")
                nursery.cancel_scope.cancel()


# Large rooms, and slow readers: with members written by hand, while no projector runs


@contextmanager
def hand_made(redis: LocalRedis) -> Iterator[HandMadeRooms]:
    """Keep projectors away from the rooms."""
    rooms, stopped = HandMadeRooms(redis.client, 1), threading.Event()
    state = Keys().rooms_state(0)

    def hold() -> None:
        while not stopped.wait(0.2):
            redis.client.hset(
                state, mapping={"runner": "a test", "until_ms": int(time.time() * 1000) + 1_400}
            )

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        yield rooms
    finally:
        stopped.set()
        holder.join()


def put(rooms: HandMadeRooms, members: dict[str, list[str]]) -> None:
    """Let rooms have these members, and tell servers."""
    with rooms.client.pipeline(transaction=True) as pipe:
        for room, uids in members.items():
            pipe.delete(rooms.keys.room(room))
            pipe.hset(rooms.keys.room(room), mapping=dict[Any, Any](dict.fromkeys(uids, "5-0 -")))
        pipe.publish(rooms.keys.room_channel, " ".join(members))
        pipe.execute()


def test_a_large_room_is_pushed_at_most_once_a_second() -> None:
    with LocalRedis() as redis, PreloadedServer(*FLAGS, "--redis", redis.url, "--shards", "1") as server:
        with hand_made(redis) as rooms, ExitStack() as stack:
            put(rooms, {"lobby": [f"u{number}" for number in range(101)]})
            watcher = Watcher(server.address, "lobby")
            stack.callback(watcher.line.close)
            pushed_at: list[float] = []
            began = time.monotonic()
            number = 0
            while time.monotonic() < began + 5.0:
                number += 1
                put(rooms, {"lobby": [f"u{each}" for each in range(101 + number)]})
                if watcher.read():
                    pushed_at.append(time.monotonic())
            watcher.read(1.5)
            pauses = [later - earlier for earlier, later in pairwise(pushed_at)]
            assert watcher.rooms == {"lobby": (101 + number, None)}
            assert 3 <= len(pushed_at) <= 6
            assert min(pauses) > 0.8


def test_a_slow_reader_gets_the_state_of_its_rooms_in_the_end() -> None:
    flags = *FLAGS, "--max-listed-members", "200", "--shards", "1"
    with LocalRedis() as redis, PreloadedServer(*flags, "--redis", redis.url) as server:
        with hand_made(redis) as rooms, ExitStack() as stack:
            names = [f"room-{number}" for number in range(60)]
            slow, fast = (Watcher(server.address, *names, uid=uid) for uid in ("slow", "fast"))
            for each in (slow, fast):
                stack.callback(each.line.close)
            for turn in range(15):  # some 2 MB each, within the time that a slow reader has
                put(rooms, {name: [f"{turn}-{each:0>100}" for each in range(100)] for name in names})
                fast.read()
                time.sleep(0.1)
            put(rooms, {name: ["ann", "bob"] for name in names})
            for each in (slow, fast):
                for name in names:
                    each.sees(name, 2, "ann", "bob", within_s=30.0)
        server.stop()
        report = server.report["watching"]["rooms"]
        assert report["put_off"] > 0
        assert server.report["core"]["ended"].get("slow_consumer", 0) == 0
