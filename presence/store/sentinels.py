"""Connections to the primary that Redis Sentinels name, wherever it is.

Each new connection asks the Sentinels first, in turn, and is refused by a server that is no primary. But a
former primary that was only out of their sight goes on answering, for some ten seconds after its return,
until they make it a replica; and a read that blocks there notices nothing. So while there are connections, a
thread asks once a second, and closes those to another server than the one named now.
"""

import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import redis

from presence.common import threads

ASK_INTERVAL_S: Final = 1.0  # a Sentinel needs longer to replace a primary

Address = tuple[str, int]


class Sentinels:
    """The Sentinels that watch one primary, and the connections of this process to it.

    Args:
        service: the name by which they know the primary.
        clients: a client of each; the first that names a primary is asked first from then on.
    """

    def __init__(self, service: str, clients: Sequence["redis.Redis"]) -> None:
        self._service = service
        self._clients = clients
        self._connections: WeakKeyDictionary[socket.socket, Address] = WeakKeyDictionary()
        self._lock = threading.Lock()  # of the connections
        self._thread = threading.Thread()  # ended

    def primary(self) -> Address:
        """Return host and port of the primary.

        Raises:
            redis.ConnectionError: no Sentinel names one; the message has what each answered.
        """
        failures = []
        clients = self._clients
        for client in clients:
            try:
                named = ask(client, self._service)
            except (redis.RedisError, OSError) as error:
                failures.append(f"{address(client)}: {error}")
                continue
            if named:
                self._clients = [client, *(each for each in clients if each is not client)]
                return named
            failures.append(f"{address(client)} does not know {self._service}")
        raise redis.ConnectionError(f"no Sentinel names a primary: {'; '.join(failures)}")

    def watch(self, connection: socket.socket, address: Address) -> None:
        """Close a connection when the primary is no longer at the address that it was made to.

        Raises:
            NoThread: none can be started to watch it.
        """
        with self._lock:
            if not self._thread.is_alive():  # nor is it in a process that was forked meanwhile
                self._thread = threading.Thread(target=self._watch, name="sentinels", daemon=True)
                threads.start(self._thread)
            self._connections[connection] = address

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(ASK_INTERVAL_S):
            with self._lock:
                if not self._connections:
                    self._thread = threading.Thread()
                    return
            with contextlib.suppress(redis.RedisError):
                self._close_others(self.primary())

    def _close_others(self, primary: Address) -> None:
        with self._lock:
            others = [each for each, address in self._connections.items() if address != primary]
        for each in others:
            with contextlib.suppress(OSError):
                # Wakes the thread that reads or writes; bypasses TLS, whose state belongs to that thread.
                socket.socket.shutdown(each, socket.SHUT_RDWR)


def ask(sentinel: "redis.Redis", service: str) -> Address | None:
    """Return the primary that one Sentinel names; None: it does not know the service."""
    named: Any = sentinel.sentinel_get_master_addr_by_name(service, return_responses=True)
    return (named[0].decode(), named[1]) if named else None


def address(sentinel: "redis.Redis") -> str:
    """Return where a Sentinel listens, as ``host:port``."""
    where = sentinel.connection_pool.connection_kwargs
    return f"{where['host']}:{where['port']}"


class SentinelConnect:
    """Goes before a connection class of redis-py, which connects to the primary then.

    Args:
        sentinels: who names it.
        arguments: of redis-py's class.
    """

    def __init__(self, *, sentinels: Sentinels, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._sentinels = sentinels

    def _connect(self) -> Any:
        address = self._sentinels.primary()
        self.host, self.port = address
        connection = super()._connect()  # type: ignore[misc]  # of redis-py's class
        try:
            self._sentinels.watch(connection, address)
        except OSError:
            connection.close()
            raise
        return connection

    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Greet the server, as redis-py does by itself; refuse one that is no primary."""
        super().on_connect_check_health(check_health=check_health)  # type: ignore[misc]  # of redis-py's class
        self.send_command("ROLE")  # type: ignore[attr-defined]
        role = self.read_response()[0]  # type: ignore[attr-defined]
        if role != b"master":
            raise redis.ConnectionError(f"{self.host}:{self.port} is no primary, but a {role.decode()}")
