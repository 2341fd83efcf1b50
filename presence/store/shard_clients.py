"""Access to the data for readers that belong to no node: on one Redis, or on a Redis Cluster.

Clients are plain redis-py ones, in a cluster one for each primary. They follow no redirection: a caller that
reads page by page has to know that another server takes over, because the cursor of one means nothing to
another.

Tests: `tests/subscriber/test_redis_connections.py`, `tests/system/store/test_access.py`.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from presence.store.cluster_routes import Routes
from presence.store.error_classes import is_elsewhere
from presence.store.keys import Keys
from presence.store.redis_client import CALL_TIMEOUT_S, ConnectOnce, Redis, RedisError, open_client

T = TypeVar("T")
Words = Sequence[Any]  # of a command

EXCLUDED_S = 1.0  # least time until a failed server is tried again;
EXCLUDED_FACTOR = 4  # or so many times as long as its failure took, because others wait for a hanging server
MAX_SCANNED_PER_CALL = 1000  # keys


class ShardClients:
    """Clients and calls for all shards. Nothing is sent before the first call, and nothing is retried.

    Calls may be made from any thread; they raise `RedisError`.

    Args:
        url: as `presence.common.redis_url` takes it; `ValueError` if not.
        call_timeout_s: how long one call may wait for its answer.
        reconnects: whether a connection closed between two calls is opened again silently. If not, the next
            call fails: Redis may have lost what the caller has read so far.

    Attributes:
        is_cluster: whether shards are on several servers: then no transaction and no blocking read can span
            more than one shard.
    """

    def __init__(self, url: str, *, call_timeout_s: float = CALL_TIMEOUT_S, reconnects: bool = True) -> None:
        def connect(server: str) -> Redis:
            once = None if reconnects else ConnectOnce()
            return open_client(server, call_timeout_s=call_timeout_s, redis_connect_func=once)

        self._routes = Routes(url, connect)
        self._lookup_lock = threading.Lock()
        self._closed = threading.Event()
        self._last_client: Redis | None = None  # of the last call
        self._last_call_at = 0.0  # its time, monotonic
        self._excluded: dict[int, float] = {}  # shards, each with the end of its exclusion
        self.is_cluster = self._routes.is_cluster

    def at(self, key: str) -> Redis:
        with self._lookup_lock:
            self._last_client = None
            client = self._routes.client(key)
        self._begin_call(client)
        return client

    def primaries(self) -> list[Redis]:
        """Return the clients of all servers that have keys."""
        with self._lookup_lock:
            clients = self._routes.primaries()
        self.check()
        return clients

    def ask(
        self,
        keys: Keys,
        shards: Iterable[int],
        fill: Callable[["Pipeline", int], object],
        *,
        is_atomic: bool = False,
        raise_on_error: bool = True,
    ) -> dict[int, list[Any]]:
        """Query several shards, in one round trip to each server; return the answers in the order of
        `shards`.

        Args:
            keys: key names.
            shards: to query.
            fill: adds the commands of a shard to a pipeline.
            is_atomic: use a transaction; in a cluster one for each shard, each a round trip.
            raise_on_error: whether an error reply is raised, or returned among the answers.
        """
        wanted = list(shards)
        answers: dict[int, list[Any]] = {}
        for client, some in self._groups(keys, wanted, is_split=is_atomic):
            self._begin_call(client)
            with client.pipeline(transaction=is_atomic) as pipe:
                ends = [0]
                for shard in some:
                    fill(pipe, shard)
                    ends.append(len(pipe))
                found = pipe.execute(raise_on_error=raise_on_error)
            for place, shard in enumerate(some):
                answers[shard] = found[ends[place] : ends[place + 1]]
        return {shard: answers[shard] for shard in wanted}

    def exchange(self, keys: Keys, commands: Mapping[int, Sequence[Words]]) -> dict[int, list[Any]]:
        """Send the commands of some shards, in one round trip to each server; return the answers as they are.

        For calls that are made for each event: half the processor time of `ask`, whose pipeline redis-py
        prepares and whose answers it parses. Error replies are among the answers.
        """
        answers: dict[int, list[Any]] = {}
        for client, some in self._groups(keys, [*commands], is_split=False):
            self._begin_call(client)
            pool: Any = client.connection_pool
            connection = pool.get_connection()
            try:
                words = [command for shard in some for command in commands[shard]]
                connection.send_packed_command(connection.pack_commands(words))
                for shard in some:
                    answers[shard] = [_reply(connection) for _ in commands[shard]]
            except BaseException:
                connection.disconnect()  # the rest of its answers would be taken for those of another call
                raise
            finally:
                pool.release(connection)
        return answers

    def reachable(self, keys: Keys) -> list[int]:
        """Return the shards that are not excluded at present."""
        if not self._excluded:
            return list(range(keys.shards))
        return [shard for shard in range(keys.shards) if shard not in self._excluded]

    def exclude(self, keys: Keys) -> list[int]:
        """Exclude the shards of the server of the last call, and those that no server has; return them.

        They are not `reachable` until `readmit` includes them again. The next call reads the map of slots
        again. Used from one thread.
        """
        failed_at = time.monotonic()
        out_s = max(
            EXCLUDED_S, EXCLUDED_FACTOR * (failed_at - self._last_call_at) if self._last_client else 0
        )
        with self._lookup_lock:
            self.check()
            groups = self._routes.groups([keys.events(shard) for shard in range(keys.shards)])
            others = {shard for client, some in groups if client is not self._last_client for shard in some}
            self._routes.invalidate(self._last_client)
        lost = [shard for shard in range(keys.shards) if shard not in others]
        self._excluded |= dict.fromkeys(lost, failed_at + out_s)
        return lost

    def readmit(self, *, is_early: bool = False) -> None:
        """Include excluded shards again whose time is over; if `is_early`, all of them."""
        if not self._excluded:
            return
        now = time.monotonic()
        self._excluded = {} if is_early else {s: at for s, at in self._excluded.items() if at > now}

    def invalidate(self, key: str | None = None, *, answer: BaseException | None = None) -> None:
        """Look up the servers of keys again with the next call.

        Args:
            key: a key of the server that has just failed, if one has.
            answer: the error of a failed call, which may name the server to ask.
        """
        with self._lookup_lock:
            failed = None
            with suppress(RedisError):
                failed = None if key is None else self._routes.client(key)
            self._routes.invalidate(failed)
            self._routes.note_redirect(answer)

    def read(self, read: Callable[["ShardClients"], T]) -> T:
        """Read; in a cluster, repeat the read once if another server may serve the data by now."""
        try:
            return read(self)
        except RedisError as error:
            if not (self.is_cluster and is_elsewhere(error)):
                raise
            self.invalidate(answer=error)
        return read(self)

    def pause(self, seconds: float) -> None:
        """Wait, at most until this is closed."""
        self._closed.wait(seconds)
        self.check()

    def check(self) -> None:
        """Raise `RedisError` if closed, so that an abandoned thread stops."""
        if self._closed.is_set():
            raise RedisConnectionError("closed")

    def close(self) -> None:
        """Close all connections for good; a call in another thread fails immediately."""
        self._closed.set()
        self._routes.shut_down()

    def _groups(self, keys: Keys, shards: Sequence[int], *, is_split: bool) -> list[tuple[Redis, list[int]]]:
        with self._lookup_lock:
            self._last_client = None
            groups = self._routes.groups([keys.events(shard) for shard in shards])
        found = [(client, [shards[place] for place in places]) for client, places in groups]
        if sum(len(some) for _, some in found) < len(shards):
            raise RedisConnectionError("no server of the cluster has some of the shards")
        if is_split and self.is_cluster:
            return [(client, [shard]) for client, some in found for shard in some]
        return found

    def _begin_call(self, client: Redis) -> None:
        """Record the server of the next call; if it failed before, check it with a short time-out first."""
        self.check()
        with self._lookup_lock:
            self._last_client, self._last_call_at = client, time.monotonic()
            try:
                self._routes.check(client)
            except OSError as error:
                raise RedisConnectionError(str(error)) from error

    def __enter__(self) -> "ShardClients":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def forget_prefix(url: str, prefix: str) -> int:
    """Delete every key that begins with `prefix` and a colon; return their number."""
    forgotten = 0
    with ShardClients(url) as clients:
        for client in clients.primaries():
            with client.pipeline(transaction=False) as pipe:
                for name in client.scan_iter(match=f"{prefix}:*", count=MAX_SCANNED_PER_CALL):
                    pipe.unlink(name)  # one by one: they may be of several slots
                forgotten += len(pipe.execute())
    return forgotten
