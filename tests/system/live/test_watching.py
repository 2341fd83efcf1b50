"""Watches and queries on real servers, while workers and Redis end and come back."""

import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import protocol
from presence.embedded import find_binary
from protocol import Code, Kind, Packet
from tests.live.events import read_events
from tests.live.server_process import ServerProcess, running_server
from tests.live.swarm import Client, Swarm
from tests.live.watchers import Eyes, assert_true, truth
from tests.store.servers import Server as Redis

FLAGS = ("--idle-timeout", "2", "--tick", "0.1", "--disconnect-grace", "0", "--lease", "1")
AT_ONCE_S = 0.5


@pytest.fixture
def redis(request: pytest.FixtureRequest) -> Iterator[Redis]:
    """A Redis that keeps its data over a kill; with the parameter False, one that does not."""
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        server = Redis(find_binary(), Path(folder), keep=getattr(request, "param", True))
        yield server
        server.close()


def ask(swarm: Swarm, client: Client, packet: Packet) -> Packet:
    """Send a request; return its answer."""
    client.send(protocol.encode(packet))

    def answer() -> list[Packet]:
        kinds = (Kind.OK, Kind.ERROR)
        return [each for each in client.received if each.kind in kinds and each.id == packet.id]

    swarm.run(10, until=lambda: bool(answer()) or client.closed)
    return answer()[-1]


def pushes(client: Client) -> list[Packet]:
    return [packet for packet in client.received if packet.kind == Kind.PRESENCE]


def log_in(swarm: Swarm, *uids: str) -> list[Client]:
    clients = swarm.log_in(uids)
    swarm.run(10, until=swarm.logged_in)
    return clients


def test_a_watch_is_answered_and_every_change_follows(redis: Redis) -> None:
    with running_server("--redis", redis.url, "--workers", "2", *FLAGS) as server:
        with Swarm(server.address, beat_s=0.5) as swarm:
            watchers = log_in(swarm, *(f"watcher-{number}" for number in range(6)))
            for watcher in watchers:
                answer = ask(swarm, watcher, protocol.watch(["ann", "bob"], id=5))
                offline = {"status": "offline", "since_ms": None, "last_seen_ms": None, "id": None}
                assert answer.payload["presence"] == {"ann": offline, "bob": offline}
            begun = time.monotonic()
            (ann,) = log_in(swarm, "ann")
            swarm.run(5, until=lambda: all(pushes(watcher) for watcher in watchers))
            seconds = time.monotonic() - begun
            ask(swarm, ann, protocol.update(meta={"mood": b"\x00"}, status="away", id=7))
            ask(swarm, ann, protocol.logout(id=8))
            swarm.run(5, until=lambda: all(len(pushes(watcher)) == 3 for watcher in watchers))
            late = ask(swarm, watchers[0], protocol.watch(["ann"], id=9))
    print(f"6 watchers on 2 workers were told of a login {1000 * seconds:.0f} ms after it")
    told = [packet.payload for packet in pushes(watchers[0])]
    assert [each["status"] for each in told] == ["online", "away", "offline"]
    assert [each["reason"] for each in told] == ["login", "away", "logout"]
    assert told[1]["meta"] == {"mood": b"\x00"}
    assert late.payload["presence"]["ann"] == {**offline, "last_seen_ms": told[2]["last_seen_ms"]}
    assert seconds < AT_ONCE_S


def test_a_query_tells_who_is_known_to_redis(redis: Redis) -> None:
    with running_server("--redis", redis.url, "--workers", "2", *FLAGS) as server:
        with Swarm(server.address, beat_s=0.5) as swarm:
            ann, bob = log_in(swarm, "ann", "bob")
            ask(swarm, bob, protocol.logout(id=5))
            swarm.run(5, until=lambda: len(read_events(redis.url)) == 3)
            states = ask(swarm, ann, protocol.query(["ann", "bob", "cy"], id=6)).payload["presence"]
            assert ask(swarm, ann, protocol.query([], id=7)).payload["presence"] == {}
    assert [states[uid]["status"] for uid in ("ann", "bob", "cy")] == ["online", "offline", "offline"]
    assert states["bob"]["last_seen_ms"] > 0
    assert states["cy"]["last_seen_ms"] is None


def test_who_unwatches_is_told_no_more(redis: Redis) -> None:
    with running_server("--redis", redis.url, *FLAGS) as server:
        with Swarm(server.address, beat_s=0.5) as swarm:
            (watcher,) = log_in(swarm, "watcher")
            ask(swarm, watcher, protocol.watch(["ann", "bob"], id=5))
            assert ask(swarm, watcher, protocol.unwatch(["ann"], id=6)).kind == Kind.OK
            log_in(swarm, "ann", "bob")
            swarm.run(5, until=lambda: bool(pushes(watcher)))
            assert ask(swarm, watcher, protocol.unwatch(id=7)).kind == Kind.OK
            log_in(swarm, "bob")
            swarm.run(0.3)
    assert [packet.payload["uid"] for packet in pushes(watcher)] == ["bob"]


def test_nobody_watches_more_than_he_may(redis: Redis) -> None:
    with running_server("--redis", redis.url, "--max-watches", "3", *FLAGS) as server:
        with Swarm(server.address, beat_s=0.5) as swarm:
            (watcher,) = log_in(swarm, "watcher")
            assert ask(swarm, watcher, protocol.watch(["a", "b"], id=5)).kind == Kind.OK
            refused = ask(swarm, watcher, protocol.watch(["b", "c", "d"], id=6))
            assert refused.payload["code"] == Code.TOO_LARGE
            assert ask(swarm, watcher, protocol.watch(["b", "c"], id=7)).kind == Kind.OK
            log_in(swarm, "a", "c", "d")
            swarm.run(5, until=lambda: len(pushes(watcher)) == 2)
            swarm.run(0.2)
    assert sorted(packet.payload["uid"] for packet in pushes(watcher)) == ["a", "c"]


def test_while_redis_is_away_requests_are_refused_in_time(redis: Redis) -> None:
    with running_server("--redis", redis.url, *FLAGS) as server:
        with Swarm(server.address, beat_s=0.5) as swarm:
            (watcher,) = log_in(swarm, "watcher")
            ask(swarm, watcher, protocol.watch(["ann"], id=5))
            redis.kill()
            begun = time.monotonic()
            for packet in (protocol.query(["ann"], id=6), protocol.watch(["bob"], id=7)):
                refused = ask(swarm, watcher, packet)
                assert refused.payload["code"] == Code.BUSY
                assert refused.payload["retry_after"] > 0
            waited_s = time.monotonic() - begun
            redis.start()
            log_in(swarm, "ann", "bob")
            swarm.run(8, until=lambda: bool(pushes(watcher)))
            again = ask(swarm, watcher, protocol.watch(["bob"], id=8))
            swarm.run(0.2)
    print(f"a query and a watch were refused within {waited_s:.2f} s in all")
    assert waited_s < 5.5 + 5.5
    assert again.payload["presence"]["bob"]["status"] == "online"
    assert [packet.payload["uid"] for packet in pushes(watcher)] == ["ann"], "a refused watch watches nobody"


class Crowd:
    """Users who come and go, and watchers who come back when their worker ends.

    Args:
        swarm: whose connections they are.
    """

    def __init__(self, swarm: Swarm, watchers: int, users: int, seed: int) -> None:
        self.swarm = swarm
        self.uids = [f"user-{number}" for number in range(users)]
        self.eyes = [Eyes() for _ in range(watchers)]
        self._clients: list[Client | None] = [None] * watchers
        self._seen = [0] * watchers
        self._online: dict[str, Client] = {}
        self._random = random.Random(seed)
        self.transitions = 0

    def watch(self) -> None:
        """Let everybody who has no connection come back and watch; take in what came."""
        for number, client in enumerate(self._clients):
            if client is not None:
                self.eyes[number].see(client.received[self._seen[number] :])
                self._seen[number] = len(client.received)
                refused = any(packet.kind == Kind.ERROR for packet in client.received)
                if not (client.closed or refused):
                    continue
                if refused:
                    client.drop()
            (fresh,) = self.swarm.log_in([f"watcher-{number}"])
            fresh.send(protocol.encode(protocol.watch(self.uids, id=2)))
            self._clients[number], self._seen[number] = fresh, 0

    def are_answered(self) -> bool:
        return all(
            client is not None and any(packet.id == 2 for packet in client.received)
            for client in self._clients
        )

    def turn(self, count: int) -> None:
        """Let some users come or go."""
        for uid in self._random.choices(self.uids, k=count):
            client = self._online.pop(uid, None)
            self.transitions += 1
            if client is None or client.closed:
                (self._online[uid],) = self.swarm.log_in([uid])
            else:
                client.send(protocol.encode(protocol.logout()))

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.turn(4)
            self.swarm.run(0.05)
            self.watch()

    def settle(self, redis: Redis) -> bool:
        """Return whether all see what the streams say."""
        self.swarm.run(0.3)
        self.watch()
        last, _ = truth(read_events(redis.url))
        return all(
            eyes.states.get(uid, {}).get("status") == (last[uid].status if uid in last else "offline")
            for eyes in self.eyes
            for uid in self.uids
        )


def kill_a_worker(server: ServerProcess) -> None:
    started = {line["worker"]: line["pid"] for line in server.lines if line["event"] == "worker started"}
    os.kill(started[1], signal.SIGKILL)


@pytest.mark.parametrize(
    ("redis", "keeps"),
    [(True, True), (False, False)],
    ids=["data-kept", "data-lost"],
    indirect=["redis"],
)
def test_watchers_see_the_truth_though_a_worker_and_redis_end(redis: Redis, *, keeps: bool) -> None:
    with running_server("--redis", redis.url, "--workers", "2", *FLAGS) as server:
        with Swarm(server.address, beat_s=0.4) as swarm:
            crowd = Crowd(swarm, 8, 20, seed=1)
            crowd.watch()
            swarm.run(5, until=crowd.are_answered)
            crowd.run(1.5)
            kill_a_worker(server)
            crowd.run(1.5)
            redis.kill()
            crowd.run(0.5)
            redis.start()
            crowd.run(2)
            redis.client.client_kill_filter(_type="pubsub")
            crowd.run(1)
            end = time.monotonic() + 30
            while not crowd.settle(redis):
                assert time.monotonic() < end, "they do not agree"
            events = read_events(redis.url)
    _, every = truth(events)
    for eyes in crowd.eyes if keeps else ():  # what is lost cannot be compared
        assert_true(eyes, every)
    ids = sum(len(each) for eyes in crowd.eyes for each in eyes.ids.values())
    print(f"{crowd.transitions} transitions, {len(events)} entries; 8 watchers were told {ids} states")
    assert ids > 4 * len(events), "most entries were told to most watchers"
