"""Hearing which volatile keys have expired, on one Redis or on all servers of a cluster.

A server tells of its own keys only, and only those who listen at that moment. So there is a listener for each
server that has keys, and `take_missed` says when something may have gone by unheard.
"""

import threading
from collections import deque
from typing import Final

from redis.exceptions import RedisError

from presence.store.client import Redis, open_client
from presence.store.failures import as_failure
from presence.store.keyspace import KeyspaceListener
from presence.store.routes import Routes

PROBE_KEYS: Final = 20_000  # tried to find one of a server of a cluster: many more than a small range takes


class Expiries:
    """Hears of the expiry of keys that begin with a prefix.

    Methods may be called from one thread at a time.

    Args:
        url: as `presence.store.address` takes it.
        prefix: of the keys.
        heard_max: how many names may wait to be taken; more are dropped, which counts as missed.
    """

    def __init__(self, url: str, prefix: str, heard_max: int) -> None:
        self._url = url
        self._prefix = prefix
        self._urls: dict[Redis, str] = {}
        self._routes = Routes(url, self._open)
        self._ears: dict[str, KeyspaceListener] = {}
        self._heard: deque[bytes] = deque()
        self._heard_max = heard_max
        self._something = threading.Event()  # was heard or missed
        self._missed = threading.Event()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._heard)

    @property
    def servers(self) -> int:
        """How many servers are listened to at present."""
        return sum(ear.is_listening for ear in self._ears.values())

    def look(self) -> None:
        """See which servers there are, and listen to each of them; call it first, and now and then.

        Raises:
            ExpiriesOff: a server that is new does not tell.
            StoreUnavailable, StoreError: a server that is new, or of a cluster all, cannot be reached or
                refuse. Those that were listened to still are.
        """
        try:
            servers = {self._urls[client]: client for client in self._routes.primaries()}
            for url in self._ears.keys() - servers.keys():
                self._ears.pop(url).close()
            for url in servers.keys() - self._ears.keys():
                self._ears[url] = self._listening(url, servers[url])
        except (RedisError, OSError) as error:
            raise as_failure(error) from error
        finally:
            self._routes.doubt()  # a cluster's map is read anew the next time

    def take(self, limit: int) -> list[str]:
        """Return names that were heard, without the prefix, oldest first, each once; never wait."""
        names: dict[str, None] = {}
        while self._heard and len(names) < limit:
            names[self._heard.popleft().decode("utf-8", "replace")] = None
        return [*names]

    def take_missed(self) -> bool:
        """Return whether keys may have expired unheard since this was asked last."""
        was_missed = self._missed.is_set()
        self._missed.clear()
        return was_missed

    def wait(self, seconds: float) -> bool:
        """Wait until something was heard or missed; return whether it was."""
        if not self._heard and not self._missed.is_set():
            self._something.clear()
            if not self._heard and not self._missed.is_set():
                self._something.wait(seconds)
        return bool(self._heard) or self._missed.is_set()

    def close(self) -> None:
        """Stop listening, and end the threads."""
        for ear in self._ears.values():
            ear.close()
        self._ears.clear()
        self._routes.close()

    def _open(self, url: str) -> Redis:
        client = open_client(url)
        self._urls[client] = url
        return client

    def _listening(self, url: str, client: Redis) -> KeyspaceListener:
        plain = self._prefix.replace("{", "").replace("}", "")  # for the first tag is the one that counts
        probes = (f"{plain}probe:{{{n}}}" for n in range(PROBE_KEYS))
        probe = next((each for each in probes if self._routes.client(each) is client), None)
        ear = KeyspaceListener(url, self._prefix, probe, self._on_heard, self._on_missed)
        try:
            ear.listen()
        except BaseException:
            ear.close()
            raise
        ear.start()
        return ear

    def _on_heard(self, name: bytes) -> None:
        if len(self._heard) < self._heard_max:
            self._heard.append(name)
            self._something.set()
        else:
            self.dropped += 1
            self._on_missed()

    def _on_missed(self) -> None:
        self._missed.set()
        self._something.set()
