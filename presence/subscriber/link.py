"""The way to Redis of one subscription, and when to try again."""

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager

from presence.reader import stored_shards
from presence.store.address import redacted
from presence.store.client import Redis, open_client
from presence.store.failures import passes
from presence.store.keys import Keys

BLOCK_MS = 500  # one blocking read; nobody waits for it, but a thread left behind should end soon
CALL_TIMEOUT_S = 5.0  # well above BLOCK_MS, or a quiet stream would look like a lost connection
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0  # between two attempts while Redis is away

log = logging.getLogger("presence.subscriber")


class Link:
    """One connection, used from one thread at a time; closed and never reused once a call has failed.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``; nothing is sent yet.

    Attributes:
        name: the URL without its password.
        losses: how many connections were closed so far; when it rises, Redis may be another.

    Raises:
        ValueError: the URL's scheme or form is not known.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.name = redacted(url)
        self.losses = 0
        self._client: Redis | None = open_client(url, call_timeout_s=CALL_TIMEOUT_S)

    @contextmanager
    def calling(self) -> Iterator[Redis]:
        """Lend the client for some calls; if one fails or is interrupted, the connection is closed."""
        if self._client is None:
            self._client = open_client(self._url, call_timeout_s=CALL_TIMEOUT_S)
        try:
            yield self._client
        except BaseException:
            self.close()
            raise

    def lends(self, client: Redis) -> bool:
        """Whether `client` is still the one in use: a thread left behind must not go on with another."""
        return self._client is client

    def close(self) -> None:
        """Close the connection; a call that waits in another thread fails at once."""
        client, self._client = self._client, None
        if client is not None:
            self.losses += 1
            client.connection_pool.disconnect(inuse_connections=True)


class Shards:
    """The shards that there are to read: one, until a server has stored how many.

    Attributes:
        keys: names for the shards known.
    """

    def __init__(self, prefix: str) -> None:
        self.keys = Keys(prefix, 0)
        self._is_final = False

    def after(self, taken_up: int, client: Redis) -> range:
        """Return the shards beyond those that were already taken up.

        Raises:
            RedisError: Redis cannot be asked.
            ValueError: what is stored is not a number of shards.
        """
        if not self._is_final:
            stored = stored_shards(client, self.keys.prefix)
            self._is_final = stored is not None
            self.keys = Keys(self.keys.prefix, max(self.keys.shards, stored or 1))
        return range(taken_up, self.keys.shards)


class Retry:
    """Decides after a failure whether to try again, and when; tells the log once for each outage.

    What fails before anything has worked is given up, for then the URL or the password is wrong.

    Args:
        name: what to call Redis in the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._has_worked = False
        self._failures = 0

    def delay_after(self, error: Exception) -> float:
        """Return the seconds to wait before the next attempt.

        Raises:
            Exception: `error` itself, which waiting will not cure.
        """
        if not (self._has_worked and passes(error)):
            raise error
        if self._failures == 0:
            log.warning("lost Redis at %s, trying again: %s", self._name, error)
        # Jitter keeps many subscribers from coming back at once; it protects nothing.
        pause_s: float = min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(self._failures, 10))
        self._failures += 1
        return pause_s * random.uniform(0.5, 1.0)  # noqa: S311

    def worked(self) -> None:
        """Take note of a call that did not fail."""
        if self._failures:
            log.warning("Redis at %s is back", self._name)
        self._has_worked = True
        self._failures = 0
