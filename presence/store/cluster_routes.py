"""Routes to the server of a key: the only one, or in a Redis Cluster the primary that serves its slot.

The map of slots is read when it is first needed, and again after any sign that it may be wrong: a redirected
call, a lost connection. The server asked for the map may not know yet of a slot that moved, so a MOVED answer
takes precedence over the map, until that server fails or says otherwise. Nothing is retried here and no call
is redirected: that is the caller's decision.

Tests: `tests/system/store/test_routes.py`.
"""

import random
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, RedisError

from presence.common.redis_url import parse
from presence.store.error_classes import passes
from presence.store.redis_client import CALL_TIMEOUT_S, open_client

# A server that has just failed a call is pinged with a short time-out before it may delay calls to others.
# From time to time it gets the full time-out of a call, because it may just be slow.
SUSPECT_TIMEOUT_S: Final = 0.5
FULL_TIMEOUT_INTERVAL_S: Final = 10.0

_UNNAMED: Final = frozenset({"", "?"})  # the host of a server that does not know its own name

Connect = Callable[[str], "redis.Redis"]


class NoOwner(RedisConnectionError):
    """No server of the cluster serves the slot of a key at present."""


@dataclass(frozen=True, slots=True)
class _Map:
    """Ranges of slots, sorted, each with the plain URL of its primary; and all known servers."""

    firsts: list[int]
    lasts: list[int]
    primaries: list[str]
    servers: list[str]

    def primary(self, slot: int) -> str | None:
        at = bisect_right(self.firsts, slot) - 1
        return self.primaries[at] if at >= 0 and slot <= self.lasts[at] else None


class Routes:
    """Clients of the servers behind a URL, opened when they are needed.

    Used from one thread at a time; only `close` and `shut_down` may be called from another. Methods that
    return clients raise `RedisError` if the map of a cluster cannot be read.

    Args:
        url: as `presence.common.redis_url` takes it; `ValueError` if not.
        connect: makes the client of a server from its plain URL.

    Attributes:
        is_cluster: whether keys are on several servers.
    """

    def __init__(self, url: str, connect: Connect = open_client) -> None:
        self._address = parse(url)
        self.url = url
        self.is_cluster = self._address.is_cluster
        self._connect = connect
        self._clients: dict[str, redis.Redis] = {}
        self._map: _Map | None = None
        self._moved: dict[int, str] = {}  # slots, and the plain URL that a MOVED answer named
        self._servers: Sequence[str] = self._address.seeds
        self._suspects: dict[str, float] = {}  # servers, and when they last had the full time-out
        self._query_client: redis.Redis | None = None  # of one query
        self._closings = 0
        self._is_shut_down = False

    def client(self, key: str) -> "redis.Redis":
        server = self._server(key)
        if server is None:
            raise NoOwner(f"no server of the cluster has {key}")
        return self._open(server)

    def groups(self, keys: Sequence[str]) -> list[tuple["redis.Redis", list[int]]]:
        """Return for each server that has some of the keys its client, and their positions in `keys`.

        Keys that no server has at present are in no group.
        """
        places: dict[str, list[int]] = {}
        for place, key in enumerate(keys):
            if (server := self._server(key)) is not None:
                places.setdefault(server, []).append(place)
        return [(self._open(server), found) for server, found in places.items()]

    def servers(self, keys: Sequence[str]) -> list[str | None]:
        """Return the plain URL of the server of each key; None: no server has it at present."""
        return [self._server(key) for key in keys]

    def primary_servers(self) -> list[str]:
        """Return the plain URLs of all servers that have keys."""
        return [*dict.fromkeys(self._known_map().primaries)] if self.is_cluster else [self._servers[0]]

    def primaries(self) -> list["redis.Redis"]:
        """Return the clients of all servers that have keys."""
        return [self._open(server) for server in self.primary_servers()]

    def any_server(self) -> "redis.Redis":
        """Return the client of any server: for channels, which all servers of a cluster share."""
        if not self.is_cluster:
            return self._open(self._servers[0])
        return self._open(self._in_order(self._known_map().servers)[0])

    def invalidate(self, client: "redis.Redis | None" = None) -> None:
        """Read the map again before the next use; close the connection of a client whose server failed."""
        self._map = None
        if client is None:
            self._moved = {}
        for server, known in [*self._clients.items()]:
            if known is client:
                self._suspects.setdefault(server, time.monotonic())
                self._clients.pop(server, None)
                self._moved = {slot: to for slot, to in self._moved.items() if to != server}
                _disconnect(known)

    def note_redirect(self, answer: object) -> None:
        """If an answer is a MOVED, record where its slot is now; call it after `invalidate`."""
        # A missing host means the server that was asked, by a name that only the map may know.
        if isinstance(answer, MovedError) and answer.host not in _UNNAMED:
            self._moved[answer.slot_id] = self._address.for_server(answer.host, answer.port)

    def check(self, client: "redis.Redis") -> None:
        """Check that a server that failed a call before is reachable, with a short time-out."""
        if not self._suspects or not self.is_cluster:
            return
        server = next((server for server, known in self._clients.items() if known is client), None)
        if server in self._suspects:
            self._ask(server, "PING")
            self._suspects.pop(server, None)

    def close(self) -> None:
        """Close all connections; a call in another thread fails. The next use opens them again."""
        clients, self._clients, query_client = self._clients, {}, self._query_client
        self._map, self._moved = None, {}
        self._closings += 1
        for client in [*clients.values(), *([query_client] if query_client else ())]:
            _disconnect(client)

    def shut_down(self) -> None:
        """Close all connections for good: later calls fail, also those of an abandoned thread."""
        self._is_shut_down = True
        self.close()

    def _open(self, server: str) -> "redis.Redis":
        client = self._clients.get(server)
        if client is None:
            client = self._clients[server] = self._connect(server)
        if self._is_shut_down:
            self._clients.pop(server, None)
            raise RedisConnectionError("closed")
        return client

    def _server(self, key: str) -> str | None:
        if not self.is_cluster:
            return self._servers[0]
        slot = key_slot(key.encode())
        primary = self._moved.get(slot) or self._known_map().primary(slot)
        if primary is None:
            self._map = None
        return primary

    def _in_order(self, servers: Sequence[str]) -> list[str]:
        """Return servers in the order to ask them: shuffled, suspects last."""
        mixed = random.sample(servers, len(servers))
        return sorted(mixed, key=self._suspects.__contains__)

    def _known_map(self) -> _Map:
        found = self._map
        if found is None:
            found = self._map = self._read_map()
            self._servers = found.servers
            self._moved = {slot: to for slot, to in self._moved.items() if to != found.primary(slot)}
            for server in self._clients.keys() - {*found.servers, *self._moved.values()}:
                # It may have been closed meanwhile, from another thread.
                if gone := self._clients.pop(server, None):
                    _disconnect(gone)
        return found

    def _read_map(self) -> _Map:
        failure: Exception | None = None
        refusal: RedisError | None = None  # a password, a permission, or a server that is in no cluster
        closings = self._closings
        asked = [*dict.fromkeys([*self._in_order(self._servers), *self._in_order(self._address.seeds)])]
        for server in asked:
            try:
                found = self._map_of(server)
            except (RedisError, OSError) as error:
                if self._closings != closings:
                    raise
                if isinstance(error, RedisError) and not passes(error):
                    refusal = refusal or error
                else:
                    self._suspects.setdefault(server, time.monotonic())
                failure = error
                continue
            self._suspects.pop(server, None)
            if found.primaries:
                return found
            failure = RedisConnectionError(f"no slots are served, says {self._shown(server)}")
        if refusal is not None:
            raise refusal
        raise RedisConnectionError(f"no server of the cluster tells who has what: {failure}") from failure

    def _map_of(self, server: str) -> _Map:
        rows = sorted(self._ask(server, "CLUSTER", "SLOTS"), key=lambda row: int(row[0]))
        urls = [[self._url(node, server) for node in row[2:]] for row in rows]
        servers = [*dict.fromkeys(url for row in urls for url in row)]
        return _Map([int(r[0]) for r in rows], [int(r[1]) for r in rows], [u[0] for u in urls], servers)

    def _ask(self, server: str, *words: str) -> Any:
        """Send a server one command over a separate connection; suspects get a short time-out."""
        timeout_s = CALL_TIMEOUT_S
        if server in self._suspects:
            if time.monotonic() - self._suspects[server] < FULL_TIMEOUT_INTERVAL_S:
                timeout_s = SUSPECT_TIMEOUT_S
            else:
                self._suspects[server] = time.monotonic()
        client = open_client(server, call_timeout_s=timeout_s, connect_timeout_s=timeout_s)
        self._query_client = client
        try:
            connection: Any = client.connection_pool.get_connection()
            connection.send_command(*words)
            return connection.read_response()
        finally:
            self._query_client = None
            _disconnect(client)

    def _url(self, node: Sequence[Any], asked: str) -> str:
        """Return the URL of a server from a row of the map; without a host it is the server that was
        asked."""
        host = (node[0] or b"").decode()
        if host in _UNNAMED:
            host = parse(asked).host
        return self._address.for_server(host, int(node[1]))

    @staticmethod
    def _shown(server: str) -> str:
        return server.rpartition("@")[2].partition("?")[0]


def _disconnect(client: "redis.Redis") -> None:
    client.connection_pool.disconnect(inuse_connections=True)
