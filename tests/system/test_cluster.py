"""Nodes among themselves, on a real server and in real time, with short leases."""

import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import protocol
from presence import cluster as cluster_module
from presence.clock import Clock
from presence.embedded import find_binary
from presence.node import Node, Stores
from presence.registry import Session
from presence.runtime import TrioRuntime
from presence.settings import Settings
from presence.store import packing
from presence.store.keys import Keys
from presence.store.lease_table import RedisLeaseTable
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from tests.store.driving import Event, check_alternation, events, online_sessions
from tests.store.servers import Server

LEASE_S, T, TICK_S = 0.8, 1.0, 0.1
KEYS = Keys()


class Silent:
    """A connection on which nothing arrives, and whose client reads nothing."""

    def __init__(self) -> None:
        self.farewells: list[bytes] = []

    def hang_up(self, handle: Any, farewell: bytes) -> None:
        self.farewells.append(farewell)

    def send(self, handle: Any, data: bytes) -> None:
        """See `Link`."""

    def offer(self, handle: Any, data: bytes) -> bool:
        """See `Link`."""
        return True

    def look(self, handle: Any) -> bool:
        return True

    def unread_s(self, handle: Any) -> float:
        return 0.0

    def address(self, handle: Any) -> str:
        return "127.0.0.1"


class Host:
    """A node, and the tasks that it runs in while it is not stopped."""

    def __init__(self, server: Server) -> None:
        settings = Settings(lease=LEASE_S, idle_timeout=T, min_idle_timeout=0.5, tick=TICK_S)
        shape = Shape(KEYS, maxlen=100_000, seen_retention_ms=10**9)
        self.stores = Stores(
            RedisStore(server.url, shape),
            RedisStore(server.url, shape),
            RedisLeaseTable(server.url, KEYS, LEASE_S),
        )
        self.node = Node(settings, 10_000, self.stores, Clock(), TrioRuntime())
        self.link = Silent()
        self.sessions: list[Session] = []

    def close(self) -> None:
        for store in (self.stores.relay, self.stores.cluster, self.stores.leases):
            store.close()

    @property
    def id(self) -> str:
        return self.node.relay.node

    def log_in(self, *uids: str) -> None:
        for uid in uids:
            guest = self.node.core.opened(self.link, uid)
            peer = self.node.core.received(guest, protocol.encode(protocol.login(uid))).peer
            assert isinstance(peer, Session)
            self.sessions.append(peer)

    async def run(self, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                for task in (self.node.relay.run, self.node.cluster.run, self.node.ticker.run):
                    nursery.start_soon(task)
                while True:
                    live = self.node.core.sessions
                    self.node.core.beats(each for each in self.sessions if each in live)
                    await trio.sleep(TICK_S)


@pytest.fixture
def server() -> Iterator[Server]:
    binary = find_binary()
    assert binary
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        server = Server(binary, Path(folder))
        yield server
        server.close()


class Hosts:
    """Some hosts in one process; each can be stopped at once, and go on later."""

    def __init__(self, server: Server, nursery: trio.Nursery) -> None:
        self.server = server
        self._nursery = nursery
        self._scopes: dict[int, trio.CancelScope] = {}
        self.all: list[Host] = []

    async def start(self, count: int) -> list[Host]:
        hosts = [Host(self.server) for _ in range(count)]
        self.all += hosts
        for host in hosts:
            await host.node.start()
            self.go_on(host)
        await trio.sleep(2 * LEASE_S)  # long enough in contact to judge others
        return hosts

    def stop(self, host: Host) -> None:
        """Nothing of it runs any more, from this moment on."""
        self._scopes[id(host)].cancel()

    def go_on(self, host: Host) -> None:
        self._scopes[id(host)] = trio.CancelScope()
        self._nursery.start_soon(host.run, self._scopes[id(host)])

    def events(self) -> list[Event]:
        return events(self.server.client)

    def of(self, uid: str) -> list[tuple[str, str]]:
        return [(each["type"], each["reason"]) for each in self.events() if each["uid"] == uid]


@pytest.fixture
async def hosts(server: Server) -> AsyncIterator[Hosts]:
    async with trio.open_nursery() as nursery:
        hosts = Hosts(server, nursery)
        yield hosts
        nursery.cancel_scope.cancel()
    for host in hosts.all:
        host.close()


async def until(condition: Any, seconds: float = 10.0) -> float:
    begun = time.monotonic()
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for stands in Redis
            await trio.sleep(0.01)
    return time.monotonic() - begun


@pytest.mark.nightly
async def test_the_users_of_a_dead_node_go_offline_once_and_in_time(hosts: Hosts) -> None:
    dead, peer, third = await hosts.start(3)
    dead.log_in(*(f"u{n}" for n in range(50)))
    peer.log_in("elsewhere")
    await trio.sleep(0.3)
    hosts.stop(dead)
    took_s = await until(lambda: len(hosts.events()) == 101)
    beat_s = LEASE_S / cluster_module.BEATS_A_LEASE
    assert LEASE_S + T - beat_s <= took_s <= LEASE_S + T + beat_s + 0.5
    await trio.sleep(LEASE_S + T)
    assert check_alternation(hosts.events()) == {"elsewhere"}
    assert len(hosts.events()) == 101
    assert {each["node"] for each in hosts.events() if each["type"] == "offline"} == {dead.id}
    swept = [host.node.cluster.statistics().swept for host in (peer, third)]
    assert sorted(swept) == [0, 1]
    counted = [host.node.relay.transitions.report()["offline"] for host in (peer, third)]
    assert sorted(map(str, counted)) == ["{'node_down': 50}", "{}"]


@pytest.mark.nightly
async def test_one_that_wakes_before_the_sweep_takes_a_new_id_and_nobody_is_told(hosts: Hosts) -> None:
    stopped, peer = await hosts.start(2)
    stopped.log_in("ann")
    await trio.sleep(0.3)
    before = stopped.id
    hosts.stop(stopped)
    await until(lambda: peer.node.cluster.statistics().fenced)
    await trio.sleep(T / 4)
    hosts.go_on(stopped)
    await until(lambda: stopped.id != before)
    await trio.sleep(2 * (LEASE_S + T))
    assert hosts.of("ann") == [("online", "login")]
    assert online_sessions(hosts.server.client) == {("ann", "", _session_id(stopped, "ann"))}


@pytest.mark.nightly
async def test_one_that_wakes_after_the_sweep_tells_of_its_users_return(hosts: Hosts) -> None:
    stopped, peer = await hosts.start(2)
    stopped.log_in("ann")
    await trio.sleep(0.3)
    hosts.stop(stopped)
    await until(lambda: peer.node.cluster.statistics().swept)
    hosts.go_on(stopped)
    await until(lambda: len(hosts.of("ann")) == 3)
    assert hosts.of("ann") == [("online", "login"), ("offline", "node_down"), ("online", "returned")]


@pytest.mark.nightly
async def test_a_user_who_returned_elsewhere_is_not_told_about(hosts: Hosts) -> None:
    dead, peer = await hosts.start(2)
    dead.log_in("ann", "bob")
    await trio.sleep(0.3)
    hosts.stop(dead)
    await trio.sleep(LEASE_S + T / 2)
    peer.log_in("ann")
    await until(lambda: peer.node.cluster.statistics().swept)
    assert hosts.of("ann") == [("online", "login")]
    assert hosts.of("bob") == [("online", "login"), ("offline", "node_down")]


@pytest.mark.nightly
async def test_another_takes_over_from_a_sweeper_that_stops(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "FIELDS_A_CALL", 1)
    monkeypatch.setattr(cluster_module, "SWEEP_PAUSE_S", 0.05)
    hosts.server.client.config_set("hash-max-listpack-entries", 0)  # or a scan shows a small hash whole
    dead, *peers = await hosts.start(3)
    dead.log_in(*(f"u{n}" for n in range(60)))
    await trio.sleep(0.3)
    hosts.stop(dead)

    def sweeper() -> Host | None:
        return next((each for each in peers if each.node.cluster.statistics().swept_sessions), None)

    await until(lambda: sweeper() is not None)
    stopped = sweeper()
    assert stopped is not None
    hosts.stop(stopped)
    ended = len(hosts.events()) - 60
    assert 0 < ended < 60, "in mid-sweep"
    (other,) = [each for each in peers if each is not stopped]
    await until(lambda: other.node.cluster.statistics().swept)
    assert check_alternation(hosts.events()) == set()
    assert len(hosts.events()) == 120


async def test_a_hanging_loop_lets_its_lease_end(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging, peer = await hosts.start(2)
    monkeypatch.setattr(hanging.node.cluster, "_healthy", lambda: False)
    renewals = hanging.node.cluster.statistics().renewals
    await until(lambda: peer.node.cluster.statistics().fenced)
    assert hanging.node.cluster.statistics().renewals <= renewals + 1
    assert not peer.node.cluster.is_alive(hanging.id)


@pytest.mark.nightly
async def test_an_outage_for_all_sweeps_nobody(hosts: Hosts) -> None:
    first, second = await hosts.start(2)
    first.log_in("ann")
    second.log_in("bob")
    await trio.sleep(0.3)
    hosts.server.process.send_signal(signal.SIGSTOP)  # for longer than lease and time-out
    await trio.sleep(LEASE_S + 2 * T)
    hosts.server.process.send_signal(signal.SIGCONT)
    await trio.sleep(2 * (LEASE_S + T))
    assert len(hosts.events()) == 2
    assert {host.node.cluster.statistics().certificates for host in (first, second)} == {0}


def _session_id(host: Host, uid: str) -> str:
    session = host.node.core.sessions.get(uid)
    assert session is not None
    return host.node.core.sessions.session_id(session)
