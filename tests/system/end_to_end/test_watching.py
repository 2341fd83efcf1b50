"""Watches and queries on real servers, while workers and Redis end and come back."""

import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from presence import protocol
from presence.protocol import Code, Kind, Packet
from presence.store.embedded import find_binary
from presence.watching.user_states import UserEvent, id_of, read_entry
from tests.store.servers import Server as Redis
from tests.support.events import read_events
from tests.support.server_process import running_server
from tests.support.swarm import Swarm, SwarmClient
from tests.support.waiting import wait_for

FLAGS = ("--idle-timeout", "2", "--tick", "0.1", "--disconnect-grace", "0", "--lease", "1")


@pytest.fixture
def redis(request: pytest.FixtureRequest) -> Iterator[Redis]:
    """A Redis that keeps its data over a kill; with the parameter False, one that does not."""
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        server = Redis(find_binary(), Path(folder), keep=getattr(request, "param", True))
        yield server
        server.close()


def ask(swarm: Swarm, client: SwarmClient, packet: Packet) -> Packet:
    client.send(protocol.encode(packet))

    def answer() -> list[Packet]:
        kinds = (Kind.OK, Kind.ERROR)
        return [each for each in client.received if each.kind in kinds and each.id == packet.id]

    swarm.run(10, until=lambda: bool(answer()) or client.is_closed)
    return answer()[-1]


def pushes(client: SwarmClient) -> list[Packet]:
    return [packet for packet in client.received if packet.kind == Kind.PRESENCE]


def log_in(swarm: Swarm, *uids: str) -> list[SwarmClient]:
    clients = swarm.log_in(uids)
    swarm.run(10, until=swarm.logged_in)
    return clients


def test_while_redis_is_away_requests_are_refused_in_time(redis: Redis) -> None:
    with running_server("--redis", redis.url, *FLAGS) as server:
        with Swarm(server.address, beat_s=0.5) as swarm:
            (watcher,) = log_in(swarm, "watcher")
            ask(swarm, watcher, protocol.watch(["ann"], id=5))
            redis.kill()
            started = time.monotonic()
            for packet in (protocol.query(["ann"], id=6), protocol.watch(["bob"], id=7)):
                refused = ask(swarm, watcher, packet)
                assert refused.payload["code"] == Code.BUSY
                assert refused.payload["retry_after"] > 0
            waited_s = time.monotonic() - started
            redis.start()
            log_in(swarm, "ann", "bob")
            swarm.run(8, until=lambda: bool(pushes(watcher)))
            again = ask(swarm, watcher, protocol.watch(["bob"], id=8))
            swarm.run(0.2)
    assert waited_s < 5.5 + 5.5
    assert again.payload["presence"]["bob"]["status"] == "online"
    assert [packet.payload["uid"] for packet in pushes(watcher)] == ["ann"], "a refused watch watches nobody"


class LiveWatcher:
    """A user who watches others, reconnects when the worker ends, and keeps all pushes."""

    def __init__(self, swarm: Swarm, uid: str, watched: list[str]) -> None:
        self._swarm, self._uid, self._watched = swarm, uid, watched
        self._client: SwarmClient | None = None
        self._read = 0  # packets of that client
        self.states: dict[str, dict[str, Any]] = {}
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.ids: dict[str, list[str]] = {uid: [] for uid in watched}

    def look(self) -> None:
        """Read what arrived; reconnect and watch if the connection has ended."""
        if self._client is not None:
            for packet in self._client.received[self._read :]:
                self._take(packet)
            self._read = len(self._client.received)
            refused = any(packet.kind == Kind.ERROR for packet in self._client.received)
            if not (self._client.is_closed or refused):
                return
            if refused:
                self._client.close()
        (self._client,) = self._swarm.log_in([self._uid])
        self._client.send(protocol.encode(protocol.watch(self._watched, id=2)))
        self._read = 0

    def _take(self, packet: Packet) -> None:
        """Keep a state; a push must have a higher id than all before."""
        is_push = packet.kind == Kind.PRESENCE
        states = {packet.payload["uid"]: packet.payload} if is_push else packet.payload.get("presence", {})
        for uid, state in states.items():
            before, id = self.ids[uid], state["id"]
            if id is not None:
                assert not before or id_of(id) >= id_of(before[-1]), (uid, before, state)
                assert not (is_push and id in before), (uid, before, state)
                before.append(id)
            self.states[uid] = dict(state)
            self.told.append((uid, dict(state)))

    def statuses(self) -> dict[str, str]:
        return {uid: state["status"] for uid, state in self.states.items()}

    def is_answered(self) -> bool:
        return self._client is not None and any(packet.id == 2 for packet in self._client.received)


class WatchedCrowd:
    """Users who come and go, and the watchers of them all."""

    def __init__(self, swarm: Swarm, watchers: int, users: int, seed: int) -> None:
        self.swarm = swarm
        self._uids = [f"user-{number}" for number in range(users)]
        self.watchers = [LiveWatcher(swarm, f"watcher-{number}", self._uids) for number in range(watchers)]
        self._online: dict[str, SwarmClient] = {}
        self._random = random.Random(seed)

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for uid in self._random.choices(self._uids, k=4):
                client = self._online.pop(uid, None)
                if client is None or client.is_closed:
                    (self._online[uid],) = self.swarm.log_in([uid])
                else:
                    client.send(protocol.encode(protocol.logout()))
            self.look(0.05)

    def look(self, seconds: float) -> None:
        self.swarm.run(seconds)
        for watcher in self.watchers:
            watcher.look()

    def agrees(self, redis: Redis) -> bool:
        """Whether all watchers have the last states of the streams."""
        self.look(0.3)
        last = {entry.uid: entry.state.status for entry in written(redis)}
        statuses = {uid: last.get(uid, "offline") for uid in self._uids}
        return all(watcher.statuses() == statuses for watcher in self.watchers)


def written(redis: Redis) -> list[UserEvent]:
    """Return the states in the streams."""
    return [
        entry for event in read_events(redis.url) if (entry := read_entry(event["entry"], event)) is not None
    ]


@pytest.mark.parametrize(
    ("redis", "keeps"),
    [(True, True), (False, False)],
    ids=["data-kept", "data-lost"],
    indirect=["redis"],
)
def test_watchers_see_the_truth_though_a_worker_and_redis_end(redis: Redis, *, keeps: bool) -> None:
    with running_server("--redis", redis.url, "--workers", "2", *FLAGS) as server:
        with Swarm(server.address, beat_s=0.4) as swarm:
            crowd = WatchedCrowd(swarm, 8, 20, seed=1)
            crowd.look(0.0)
            swarm.run(5, until=lambda: all(watcher.is_answered() for watcher in crowd.watchers))
            crowd.run(1.5)
            os.kill(server.workers()[1], signal.SIGKILL)
            crowd.run(1.5)
            redis.kill()
            crowd.run(0.5)
            redis.start()
            crowd.run(2)
            redis.client.client_kill_filter(_type="pubsub")
            crowd.run(1)
            wait_for(lambda: crowd.agrees(redis), 30)
    entries = written(redis)
    every = {(entry.uid, entry.state.id): entry.state._replace(devices=None).shown() for entry in entries}
    for watcher in crowd.watchers if keeps else ():  # what is lost cannot be compared
        for uid, state in watcher.told:
            if state["id"] is not None:
                shown = {"meta": None, **every[uid, state["id"]]}
                assert {name: state.get(name) for name in shown} == shown
    ids = sum(len(each) for watcher in crowd.watchers for each in watcher.ids.values())
    assert ids > 4 * len(entries), "most entries were told to most watchers"
