"""What a run stands on: nodes, with proxies before and behind them, and a Redis that can forget."""

import contextlib
import itertools
import math
import os
import shutil
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from loadtest.redis_contents import Records
from loadtest.redis_sentinel import SentinelSetup, TcpRedis
from loadtest.servers import SERVE_NO_STALE_DATA, LocalRedis, PresenceServer, free_port, is_stopped, wait_for
from presence.store.redis_client import open_client
from tests.support.proxy import Proxy
from tests.support.redis_cluster import Cluster, Member
from tests.system.chaos.crowd import Address

WITHOUT_PROXY = ("+cluster://", "+sentinel://")  # such a URL names servers that name others
START_RETRY_S = 0.2
RETRIED_ERRORS = ("Redis", "redis", "in use")  # of what a start may fail with
EXPECTED_ERRORS = ("Redis refused",)  # what a Redis that is out of memory says
SAVED_FOLDER = "kept"
ANSWER_TIMEOUT_S = 0.2
SYNC_S = 10.0
PRIMARY_CACHE_S = 0.2


class ChaosNode:
    """One server, restarted at the same address.

    Args:
        redis: the socket of Redis, reached through a proxy; or the URL of a cluster or of Sentinels.
        program: see `PresenceServer`.
        pythons: each start takes the next of these, and the first one after the last.

    Attributes:
        path: the proxy to Redis; None without one.
        clients: the proxies for some of its clients, over TCP and over WebSocket.
    """

    def __init__(
        self, redis: str, flags: Sequence[str], program: Sequence[str], pythons: Sequence[str]
    ) -> None:
        self._pythons = itertools.cycle(pythons)
        self._flags, self._program = flags, program
        self._failures: list[str] = []
        self.path = None if any(kind in redis for kind in WITHOUT_PROXY) else Proxy(redis)
        self._redis_url = self.path.url if self.path else redis
        self._ws_port = free_port()
        self._server = self._start(free_port())
        tcp = self._server.address
        self._ports = tcp, (tcp[0], self._ws_port)
        self.clients = [*map(Proxy, self._ports)]

    def addresses(self, place: int) -> list[Address]:
        """Return where clients can log in: over TCP, then over WebSocket, each without and with a proxy."""
        return [
            Address(address, place, is_proxied, is_websocket)
            for is_websocket, port, proxy in zip((False, True), self._ports, self.clients, strict=True)
            for address, is_proxied in ((port, False), (proxy.address, True))
        ]

    @property
    def pid(self) -> int:
        return self._server.process.pid

    def _start(self, port: int) -> PresenceServer:
        flags = ("--redis", self._redis_url, "--ws-port", str(self._ws_port), *self._flags)
        python = next(self._pythons)
        while True:
            try:
                return PresenceServer(*flags, port=port, program=self._program, python=python)
            except RuntimeError as error:  # Redis could not be reached for the whole of its patience
                if not any(word in str(error) for word in RETRIED_ERRORS):
                    raise
                time.sleep(START_RETRY_S)

    def restart(self) -> None:
        """Start it at the same address; return when it is ready."""
        self._failures = self.failures()
        self._server = self._start(self._server.address[1])

    def kill(self) -> int:
        """Kill it; return its exit status."""
        self._server.process.kill()
        return self._server.process.wait()

    def drain(self) -> int:
        """Stop it gracefully; return its exit status."""
        return self._server.stop()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def is_frozen(self) -> bool:
        return is_stopped(self.pid)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def failures(self) -> list[str]:
        """Return the exceptions that all of its processes logged."""
        found = (each for each in self._server.failures() if not each.startswith(EXPECTED_ERRORS))
        return [*self._failures, *found]

    def close(self) -> None:
        for proxy in self.clients:
            proxy.close()
        self._server.stop()
        if self.path:
            self.path.close()


class DurableRedis(LocalRedis):
    """A `LocalRedis` that survives a kill with all data, unless it is made to lose it."""

    def __init__(self) -> None:
        super().__init__(keep=True, extra=SERVE_NO_STALE_DATA)

    @property
    def _files(self) -> list[Path]:
        return [
            *self.folder.glob("appendonly*/*"),
            *self.folder.glob("appendonly.aof"),
        ]  # the latter: Redis 6

    @property
    def _saved(self) -> Path:
        return self.folder / SAVED_FOLDER

    def save_state(self) -> None:
        """Save the present data, to go back to. Nothing may be written meanwhile."""
        shutil.rmtree(self._saved, ignore_errors=True)
        for each in self._files:
            copy = self._saved / each.relative_to(self.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(each, copy)

    def discard_data(self, *, back: bool) -> None:
        """Before a restart: discard all data, or what was written since `save_state`."""
        for each in self._files:
            each.unlink()
        if back:
            shutil.copytree(self._saved, self.folder, dirs_exist_ok=True)
            shutil.rmtree(self._saved)

    def compact(self) -> None:
        """Rewrite the append-only file, which has grown with every change."""
        with contextlib.suppress(Exception):  # one is under way
            self.client.bgrewriteaof()

    def aof_bytes(self) -> int:
        return int(self.client.info("persistence")["aof_current_size"])

    def replication_offset(self) -> int:
        """Return the replication offset, for a primary or a replica."""
        info = self.client.info("replication")
        return int(info["slave_repl_offset" if info["role"] == "slave" else "master_repl_offset"])


class Plain:
    """One Redis, which a replica may replace.

    Attributes:
        front_proxy: always leads to the server, for those that no fault disturbs.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.server = self._stack.enter_context(DurableRedis())
        self.front_proxy = self._stack.enter_context(Proxy(self.server.path))
        self.records = Records(self.client_of)
        self._client: Any = open_client(self.front_proxy.url)
        self.url = self.front_proxy.url

    def close(self) -> None:
        self._client.close()
        self._stack.close()

    def client_of(self, _key: str) -> Any:
        return self._client

    def target(self) -> str:
        return self.server.path

    def make_replica(self) -> tuple[DurableRedis, Proxy]:
        """Start a replica, and wait until it is in sync; return it and the proxy to its primary."""
        way = self._stack.enter_context(Proxy(self.server.path))
        replica = self._stack.enter_context(DurableRedis())
        replica.client.replicaof(*way.address)
        if not wait_for(lambda: replica.client.info("replication")["master_link_status"] == "up", SYNC_S):
            raise RuntimeError("the replica has not got the data")
        return replica, way

    def proxy_to_server(self) -> Proxy:
        """Return a new proxy to the server, for a replica of it."""
        return self._stack.enter_context(Proxy(self.server.path))

    def promote(self, to: DurableRedis, paths: Iterable[Proxy]) -> None:
        """Let a replica replace the server: for new connections, and at the front proxy for all."""
        to.client.replicaof("NO", "ONE")
        self.server = to
        for path in (self.front_proxy, *paths):
            path.retarget(to.path)
        self.front_proxy.reset()

    def compact(self) -> None:
        self.server.compact()


class Clustered:
    """A Redis Cluster of three primaries."""

    def __init__(self, replicas: int) -> None:
        self.cluster = Cluster(3, replicas)
        self.records = Records(self.client_of)
        self.url = self.cluster.url
        self._slots: dict[str, int] = {}
        self._primaries: dict[int, tuple[float, Member]] = {}

    def close(self) -> None:
        self.cluster.close()

    def client_of(self, key: str) -> Any:
        """Return a connection to the primary of a key; raises LookupError if there is none now."""
        if key not in self._slots:
            self._slots[key] = self.cluster.slot_of(key)
        slot = self._slots[key]
        found_at, primary = self._primaries.get(slot, (-math.inf, None))
        if primary is None or time.monotonic() - found_at > PRIMARY_CACHE_S:
            primary = self.cluster.primary_of(slot)
            self._primaries[slot] = time.monotonic(), primary
        return primary.client

    def compact(self) -> None:
        pass


class Watched:
    """One Redis and its replica, watched by three Sentinels.

    Attributes:
        promoted: the new primary, while the Sentinels still name the old one.
    """

    def __init__(self) -> None:
        self.setup = SentinelSetup()
        self.records = Records(self.client_of)
        self.url = self.setup.url
        self.promoted: TcpRedis | None = None
        self._primary: tuple[float, TcpRedis] = (-math.inf, self.setup.servers[0])

    def close(self) -> None:
        self.setup.close()

    def client_of(self, _key: str) -> Any:
        """Return a connection to the primary; raises LookupError if there is none now."""
        if self.promoted:
            return self.promoted.client
        if time.monotonic() - self._primary[0] > PRIMARY_CACHE_S:
            self._primary = time.monotonic(), self.setup.primary
        return self._primary[1].client

    def compact(self) -> None:
        pass
