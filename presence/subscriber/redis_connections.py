"""Connections of a subscription to Redis, the shards that it reads, and its pauses while nothing comes."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from presence.common.redis_url import is_cluster, redacted
from presence.store.error_classes import CONNECTION_LOST, passes
from presence.store.keys import Keys
from presence.store.records import stored_shards
from presence.store.redis_client import CALL_TIMEOUT_S, RedisError
from presence.store.shard_clients import ShardClients

BLOCK_MS = 500  # one wait for entries; an abandoned thread ends after it
BLOCKING_TIMEOUT_S = 5.0  # well above BLOCK_MS, or an idle stream would look like a lost connection
# Between two polls where no read can wait for all streams, in a cluster: first after something came, and at
# most while nothing comes, so that an idle subscriber costs next to nothing.
POLL_INTERVAL_FIRST_S = 0.02
POLL_INTERVAL_MAX_S = 0.2
POLL_INTERVAL_GROWTH = 1.5

log = logging.getLogger("presence.subscriber")
T = TypeVar("T")


class RedisConnections:
    """Connections to all shards, used from one thread at a time; never reused after a failed call.

    A connection that was closed between two calls fails the next call, too. So everything read without a
    failure came from the same servers, and none of them was restarted meanwhile. With `reconnects` (see
    `ShardClients`) this does not hold.

    Attributes:
        name: the URL without its password.
        losses: how often connections were closed so far; after a loss Redis may have other data.
    """

    def __init__(self, url: str, *, reconnects: bool = False) -> None:
        self._url = url
        self._reconnects = reconnects
        self.name = redacted(url)
        self.losses = 0
        self._excluded: set[int] = set()  # shards, as logged
        self._clients: ShardClients | None = self._open()

    def _open(self) -> ShardClients:
        timeout_s = CALL_TIMEOUT_S if is_cluster(self._url) else BLOCKING_TIMEOUT_S
        return ShardClients(self._url, call_timeout_s=timeout_s, reconnects=self._reconnects)

    @contextmanager
    def borrow(self) -> Iterator[ShardClients]:
        """Lend the clients for some calls; if a call fails or is interrupted, all connections are closed.

        So in a cluster the call after a redirect begins with a new map of slots.
        """
        clients = self._clients
        if clients is None:
            clients = self._clients = self._open()
        try:
            yield clients
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, RedisError):
                # redis-py may raise anything if another thread closes the connection it is using.
                # In that case the error is "closed".
                clients.check()
            self.close()
            raise

    def run_on_reachable(self, work: Callable[[ShardClients], T], shards: "Shards") -> T:
        """Return the result of `work` on the reachable shards; repeat it without a server that fails.

        So an unreachable server of a cluster delays the events of its own shards only. Excluded servers are
        tried again soon. Raises `RedisError` if no shard is reachable, or for an error that is no lost
        connection.
        """
        with self.borrow() as clients:
            clients.readmit()
            while True:
                try:
                    result = work(clients)
                except CONNECTION_LOST as error:
                    self._exclude_lost_shards(clients, error, shards.keys)
                else:
                    if self._excluded:
                        self._log_restored(clients.reachable(shards.keys))
                    return result

    def _exclude_lost_shards(self, clients: ShardClients, error: RedisError, keys: Keys) -> None:
        if not clients.is_cluster or not passes(error):
            raise error
        lost = clients.exclude(keys)
        if not lost or not clients.reachable(keys):
            raise error
        self.losses += 1
        if not self._excluded.issuperset(lost):
            log.warning("lost shards %s of Redis at %s, retrying: %s", lost, self.name, error)
            self._excluded.update(lost)

    def _log_restored(self, reachable: list[int]) -> None:
        if back := self._excluded.intersection(reachable):
            log.warning("shards %s of Redis at %s are reachable again", sorted(back), self.name)
            self._excluded -= back

    def close(self) -> None:
        """Close the connections; a call in another thread fails immediately."""
        clients, self._clients = self._clients, None
        if clients is not None:
            self.losses += 1
            clients.close()


class PollInterval:
    """The growing pause between two polls, where Redis cannot block until something comes.

    A cluster refuses a blocking read over streams of several slots, even on one server.
    """

    def __init__(self) -> None:
        self._pause_s = POLL_INTERVAL_FIRST_S

    def wait(self, wait_s: float, clients: ShardClients, poll: Callable[[], list[T]]) -> list[T]:
        """Poll for about `wait_s` seconds until something comes; then the next pause is short again.

        Raises:
            RedisError: the connections were closed meanwhile.
        """
        while wait_s > 0:
            pause_s = min(self._pause_s, wait_s)
            clients.pause(pause_s)
            wait_s -= pause_s
            self._pause_s = min(self._pause_s * POLL_INTERVAL_GROWTH, POLL_INTERVAL_MAX_S)
            if found := poll():
                self._pause_s = POLL_INTERVAL_FIRST_S
                return found
        return []


class Shards:
    """The shards to read, by `keys`: one, until a server has stored their number.

    The number is read again after every loss, because the servers may come back with another one. Shards are
    only added: those of a smaller number are among the known ones. `kind` is the class of key names: its
    `events` is the stream that is read. With `only`, this one is read.
    """

    def __init__(self, prefix: str, kind: type[Keys] = Keys, only: int | None = None) -> None:
        self.keys = kind(prefix, 0)
        self._only = only
        self._is_final = False
        self._known_losses = 0  # of connections, when the number was read
        self._is_warned = False

    def selected(self, shards: Iterable[int]) -> list[int]:
        """Return those of some shards that are to be read."""
        return [shard for shard in shards if self._only in {None, shard}]

    def new_shards(self, known_count: int, clients: ShardClients, losses: int = 0) -> range:
        """Return the shards after the first `known_count`; `losses`: of `RedisConnections`.

        Raises:
            RedisError: Redis is unreachable.
            ValueError: the stored value is not a number of shards.
        """
        if not self._is_final or losses != self._known_losses:
            stored = stored_shards(clients, self.keys.prefix)
            self._is_final = stored is not None
            self._known_losses = losses
            self.keys = replace(self.keys, shards=max(self.keys.shards, stored or 1))
        return range(known_count, self.keys.shards)

    def note_lost_data(self) -> None:
        """Read the number again next time: Redis has lost data, perhaps all of it."""
        self._is_final = False

    @property
    def is_final(self) -> bool:
        """Whether a server has stored the number of shards."""
        return self._is_final

    def warn_if_missing(self, redis: str) -> None:
        """Log once that no server has written yet: the prefix may be wrong. `redis`: its name in the log."""
        if not (self._is_final or self._is_warned):
            log.warning("no data below prefix %r at %s: is the prefix right?", self.keys.prefix, redis)
            self._is_warned = True


def unless_missing(answer: Any) -> Any:
    """Return the answer, or None if the stream or the group does not exist."""
    if isinstance(answer, RedisError):
        if str(answer).startswith(("NOGROUP", "no such key")):
            return None
        raise answer
    return answer
