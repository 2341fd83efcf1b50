"""A way to Redis on which something happens right after an answer, as a failover does between two calls."""

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

READ_BYTES = 65_536
POLL_S = 0.05


class Relay:
    """Passes bytes on between one program and a Redis, in a thread; use it in a ``with`` block.

    Args:
        url: of the Redis, behind a Unix socket or on TCP.
    """

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._events: list[tuple[bytes, Callable[[], object], bool]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def after(self, command: bytes, act: Callable[[], object], *, closes: bool = False) -> None:
        """Act once the next such command was answered, before the answer is passed on.

        Several are waited for in the order in which they were given.

        Args:
            command: what the commands that are sent contain, in any case of letters.
            act: called in the relay's thread.
            closes: whether the connection is closed behind the answer.
        """
        self._events.append((command.lower(), act, closes))

    @property
    def is_done(self) -> bool:
        """Whether all that was to happen has happened."""
        return not self._events

    def _run(self) -> None:
        while not self._is_over.is_set():
            if select.select([self._listener], [], [], POLL_S)[0]:
                with self._listener.accept()[0] as program, self._connected() as redis:
                    with contextlib.suppress(OSError):
                        self._pass_on(program, redis)

    def _connected(self) -> socket.socket:
        if self._target.scheme == "unix":
            redis = socket.socket(socket.AF_UNIX)
            redis.connect(str(Path(self._target.path)))
            return redis
        return socket.create_connection((self._target.hostname, self._target.port))

    def _pass_on(self, program: socket.socket, redis: socket.socket) -> None:
        asked = b""
        while not self._is_over.is_set():
            ready, _, _ = select.select([program, redis], [], [], POLL_S)
            if program in ready:
                if not (data := program.recv(READ_BYTES)):
                    return
                asked = data.lower()
                redis.sendall(data)
            if redis in ready:
                if not (data := redis.recv(READ_BYTES)):
                    return
                closes = False
                if self._events and self._events[0][0] in asked:
                    _, act, closes = self._events.pop(0)
                    act()
                # The end is in the same segment as the answer: who has read the one can see the other.
                program.send(data, socket.MSG_MORE if closes else 0)
                if closes:
                    program.shutdown(socket.SHUT_WR)
                    return

    def __enter__(self) -> "Relay":
        self._thread.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._listener.close()
