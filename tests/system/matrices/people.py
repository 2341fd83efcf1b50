"""Clients of a matrix: sockets that log in, send keepalives, and return when they are closed."""

import contextlib
import socket
import threading
import time
from typing import Self

from presence import protocol

KEEPALIVE_S = 0.2
RETURN_S = 0.1
CONNECT_TIMEOUT_S = 1.0


class People:
    """Users with a connection each, in one thread."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[str, int]] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        for each in self._sockets.values():
            each.close()

    def come(self, address: tuple[str, int], *uids: str) -> None:
        """Keep these users online at a server."""
        with self._lock:
            self._places.update(dict.fromkeys(uids, address))

    def leave(self, *uids: str) -> None:
        """Close the connections of these users; they do not return."""
        with self._lock:
            for uid in uids:
                del self._places[uid]
                if gone := self._sockets.pop(uid, None):
                    gone.close()

    def _run(self) -> None:
        while not self._ends.wait(KEEPALIVE_S):
            with self._lock:
                for uid, place in self._places.items():
                    self._serve(uid, place)

    def _serve(self, uid: str, place: tuple[str, int]) -> None:
        line = self._sockets.get(uid)
        try:
            if line is None:
                line = socket.create_connection(place, CONNECT_TIMEOUT_S)
                self._sockets[uid] = line
                line.sendall(protocol.encode(protocol.login(uid, id=1)))
                line.setblocking(False)
            else:
                line.sendall(protocol.KEEPALIVE)
                with contextlib.suppress(BlockingIOError):
                    while data := line.recv(65_536):
                        del data
                    raise ConnectionResetError
        except OSError:
            if line:
                line.close()
            self._sockets.pop(uid, None)


def visit(address: tuple[str, int], uid: str, seconds: float = 0.05) -> None:
    """Log in, show a status, and log out."""
    with contextlib.suppress(OSError), socket.create_connection(address, CONNECT_TIMEOUT_S) as line:
        line.settimeout(CONNECT_TIMEOUT_S)
        line.sendall(protocol.encode(protocol.login(uid, id=1)))
        line.recv(4096)
        line.sendall(protocol.encode(protocol.logout(id=2)))
        line.recv(4096)
        time.sleep(seconds)
