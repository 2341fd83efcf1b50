"""What all subscriptions stand on: the way to Redis, when to try again, and what a source of items is."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Generic, TypeVar

from presence.common.backoff import backoff_s, jittered
from presence.common.redis_url import is_cluster, redacted
from presence.store.client import CALL_TIMEOUT_S, RedisError
from presence.store.error_classes import CONNECTION_LOST, code_of, needs_operator, passes
from presence.store.keys import Keys
from presence.store.records import stored_shards
from presence.store.shard_clients import ShardClients

BLOCK_MS = 500  # one wait for entries; nobody waits for it, but a thread left behind should end soon
BLOCKING_TIMEOUT_S = 5.0  # well above BLOCK_MS, or a quiet stream would look like a lost connection
LOOK_FIRST_S = 0.02  # between two looks where Redis cannot wait for us: in a cluster, after something came;
LOOK_MAX_S = 0.2  # and while nothing comes, so that a subscriber at rest costs next to nothing
LOOK_GROWTH = 1.5
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0  # between two attempts while Redis is away

log = logging.getLogger("presence.subscriber")
Raw = TypeVar("Raw")
T = TypeVar("T")


class RedisConnections:
    """Connections, used from one thread at a time; closed and never reused once a call has failed.

    One that was closed between two calls fails the next call, too: so all that was read without a failure was
    read from the same servers, and none of them was started again meanwhile. But for those who are to
    reconnect (see `ShardClients`): to them what they have read before does not matter.

    Attributes:
        name: the URL without its password.
        losses: how often connections were closed so far; when it rises, Redis may be another.
    """

    def __init__(self, url: str, *, reconnects: bool = False) -> None:
        self._url = url
        self._reconnects = reconnects
        self.name = redacted(url)
        self.losses = 0
        self._left_out: set[int] = set()  # shards, as the log was told
        self._access: ShardClients | None = self._open()

    def _open(self) -> ShardClients:
        in_time_s = CALL_TIMEOUT_S if is_cluster(self._url) else BLOCKING_TIMEOUT_S
        return ShardClients(self._url, call_timeout_s=in_time_s, reconnects=self._reconnects)

    @contextmanager
    def calling(self) -> Iterator[ShardClients]:
        """Lend the way to Redis for some calls; if one fails or is interrupted, all connections are closed.

        So in a cluster whatever sends a call elsewhere lets the next one begin with a new look at who has
        what.
        """
        access = self._access
        if access is None:
            access = self._access = self._open()
        try:
            yield access
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, RedisError):
                # redis-py may raise anything if another thread closes the connection it is using.
                # In that case the error is "closed".
                access.check()
            self.close()
            raise

    def turn(self, work: Callable[[ShardClients], None], shards: "Shards") -> None:
        """Do some work on the shards that are `reachable`; if it fails, do it again without who failed it.

        So a server of a cluster that is away delays the events of its shards and of no others. Whoever is
        left out is asked again before long. `RedisError`: no shard can be reached, or what failed is no
        connection.
        """
        with self.calling() as access:
            access.readmit()
            while True:
                try:
                    work(access)
                except CONNECTION_LOST as error:
                    self._go_on_without(access, error, shards.keys)
                else:
                    self._tell_return(access.reachable(shards.keys))
                    return

    def _go_on_without(self, access: ShardClients, error: RedisError, keys: Keys) -> None:
        if not access.is_cluster or not passes(error):
            raise error
        lost = access.leave_out(keys)
        if not lost or not access.reachable(keys):
            raise error
        self.losses += 1
        if not self._left_out.issuperset(lost):
            log.warning("lost shards %s of Redis at %s, retrying: %s", lost, self.name, error)
            self._left_out.update(lost)

    def _tell_return(self, reachable: list[int]) -> None:
        if back := self._left_out.intersection(reachable):
            log.warning("shards %s of Redis at %s are reachable again", sorted(back), self.name)
            self._left_out -= back

    def close(self) -> None:
        """Close the connections; a call that waits in another thread fails at once, and makes no other."""
        access, self._access = self._access, None
        if access is not None:
            self.losses += 1
            access.close()


class PollInterval:
    """How long to wait between two looks for what is new, where Redis cannot tell when it comes.

    A blocking read over streams of several slots is refused by a cluster, on one server too.
    """

    def __init__(self) -> None:
        self._pause_s = LOOK_FIRST_S

    def wait(self, wait_s: float, access: ShardClients, look: Callable[[], list[T]]) -> list[T]:
        """Look until there is something, for about so many seconds; after that soon again, for more may come.

        Raises:
            RedisError: the connections were closed meanwhile.
        """
        while wait_s > 0:
            pause_s = min(self._pause_s, wait_s)
            access.pause(pause_s)
            wait_s -= pause_s
            self._pause_s = min(self._pause_s * LOOK_GROWTH, LOOK_MAX_S)
            if found := look():
                self._pause_s = LOOK_FIRST_S
                return found
        return []


class Shards:
    """The shards that there are to read, by `keys`: one, until a server has stored how many.

    `kind` says whose names they have: `events` is the stream that is read.
    """

    def __init__(self, prefix: str, kind: type[Keys] = Keys) -> None:
        self.keys = kind(prefix, 0)
        self._is_final = False

    def after(self, taken_up: int, access: ShardClients) -> range:
        """Return the shards beyond those that were already taken up.

        Raises:
            RedisError: Redis cannot be asked.
            ValueError: what is stored is not a number of shards.
        """
        if not self._is_final:
            stored = stored_shards(access, self.keys.prefix)
            self._is_final = stored is not None
            self.keys = replace(self.keys, shards=max(self.keys.shards, stored or 1))
        return range(taken_up, self.keys.shards)


class Retry:
    """Decides after a failure whether to try again, and when; tells the log once for each outage.

    What fails before anything has worked is given up, for then the URL or the password is wrong. What an
    operator has to mend is tried again later on, and told as an error.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._has_worked = False
        self._failures = 0
        self._told = ""

    def delay_after(self, error: Exception) -> float:
        """Return the seconds to wait before the next attempt.

        Raises:
            Exception: `error` itself, which waiting will not cure.
        """
        if not (self._has_worked and (passes(error) or needs_operator(error))):
            raise error
        if self._failures or code_of(error) != "MOVED":  # that a shard was moved once is no outage
            self._tell(error)
        self._failures += 1
        return jittered(backoff_s(self._failures - 1, RETRY_FIRST_S, RETRY_MAX_S))

    def worked(self) -> None:
        """Take note of a call that did not fail."""
        if self._told:
            log.warning("Redis at %s is reachable again", self._name)
        self._has_worked = True
        self._failures = 0
        self._told = ""

    def _tell(self, error: Exception) -> None:
        if needs_operator(error) and self._told != str(error):
            log.error("Redis at %s now refuses calls, retrying: %s", self._name, error)
            self._told = str(error)
        elif not self._told:
            log.warning("lost Redis at %s, retrying: %s", self._name, error)
            self._told = str(error)


class Source(ABC, Generic[Raw]):
    """Items in order. `fetch` and `flush` block and may run in a thread; all else is called between them.

    Without a group nothing is acknowledged, nothing comes again, and there are no dead letters to tell an
    error to: most methods do nothing.
    """

    def __init__(self, link: RedisConnections) -> None:
        self._link = link  # nobody else uses it

    @property
    def has_work(self) -> bool:
        """Whether `fetch` has something to do before `take` can give."""
        return True

    @abstractmethod
    def fetch(self) -> None:
        """Acknowledge what is settled; get items ready, or none after a while. Call again if it fails.

        Raises:
            RedisError: the call failed.
            ValueError: what Redis holds is no data of a presence server.
        """

    @abstractmethod
    def take(self) -> Raw | None:
        """Return the next item that is ready; it is then the present one. Never blocks."""

    def close(self) -> None:
        """Close the connection, from any thread. The place is kept; what was read ahead stays pending."""
        self._link.close()

    @property
    def redis(self) -> str:
        """What to call Redis in the log."""
        return self._link.name

    def flush(self) -> None:
        """Acknowledge what is settled, and no more; raises `RedisError`."""

    def settle(self) -> None:
        """The present item was handled: it will be acknowledged with the next call."""

    def reenter(self) -> None:
        """The loop was left and is entered again: the present item was not handled, and comes again."""

    def fail(self, error: str) -> None:
        """The present item was not handled, for this reason: it comes again after `claim_idle_s`."""

    def leave(self, error: str) -> None:
        """The loop was left because of this error: the present item comes again when it is entered."""
