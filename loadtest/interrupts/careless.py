"""What is tried for comparison: a client whose connection stays open when a call on it was interrupted."""

import threading
from typing import Any, Final

from presence.store.client import Redis, open_client

LOOK_S: Final = 0.0005  # between two looks whether the wait for an answer was ended


class Careless:
    """Connects as `open_client` does; but where a connection is to be closed only its wait ends.

    It stands for a client, for its pool and for the one connection of that.
    """

    def __init__(self, url: str) -> None:
        self.connection_pool = self
        self._client = open_client(url)
        pool: Any = self._client.connection_pool  # redis-py's, whose types are loose
        self._connection: Any = pool.get_connection()
        self._is_interrupted = threading.Event()

    def get_connection(self) -> "Careless":
        """Return the connection, whatever happened to it before."""
        self._is_interrupted.clear()
        return self

    def release(self, connection: "Careless") -> None:
        """Take it back."""

    def disconnect(self, *, inuse_connections: bool) -> None:
        """End the wait, and keep the connection."""
        self._is_interrupted.set()

    def pack_commands(self, commands: Any) -> Any:
        """See redis-py's connection."""
        return self._connection.pack_commands(commands)

    def send_packed_command(self, commands: Any) -> None:
        """See redis-py's connection."""
        self._connection.send_packed_command(commands)

    def read_response(self) -> Any:
        """Wait for an answer, unless that is ended; raises OSError then."""
        while not self._connection.can_read(LOOK_S):
            if self._is_interrupted.is_set():
                raise InterruptedError("the call was interrupted")
        return self._connection.read_response()

    def close(self) -> None:
        """Close it in the end."""
        self._client.connection_pool.disconnect()


class CarelessOpener:
    """Makes one such client for each URL, and gives it again; to be passed where `open_client` is."""

    def __init__(self) -> None:
        self._clients: dict[str, Any] = {}

    def __call__(self, url: str) -> Redis:
        """Return the client."""
        if url not in self._clients:
            self._clients[url] = Careless(url)
        client: Redis = self._clients[url]
        return client

    def close(self) -> None:
        """Close all of them."""
        for client in self._clients.values():
            client.close()
