"""A server in front of a real one: it passes commands on, and refuses scripts while it is told to."""

import contextlib
import socket
import threading
from pathlib import Path
from typing import Any

import hiredis

_CHUNK_BYTES = 65_536


class RefusingFront:
    """Listens on a Unix socket in `folder`; every command has one answer, so it cannot carry subscriptions.

    Args:
        folder: a directory with a short path.
        behind: the real server's socket.

    Attributes:
        url: where it is.
        refusal: the error reply that calls of scripts get instead of being run, while it is not "".
        refused: how many did.
    """

    def __init__(self, folder: Path, behind: Path) -> None:
        path = folder / "front.sock"
        self.url = f"unix://{path}"
        self.refusal = ""
        self.refused = 0
        self._behind = str(behind)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # not connected, as it listens; it wakes the thread all the same
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as behind, contextlib.suppress(OSError):
            behind.connect(self._behind)
            commands = hiredis.Reader(notEnoughData=self)
            while data := client.recv(_CHUNK_BYTES):
                commands.feed(data)
                while (command := commands.gets()) is not self:
                    client.sendall(self._answer(command, behind))

    def _answer(self, command: list[bytes], behind: socket.socket) -> bytes:
        if command[0] in {b"EVALSHA", b"EVAL"} and self.refusal:
            self.refused += 1
            return f"-{self.refusal}\r\n".encode()
        words: Any = tuple(command)  # of any length, other than hiredis' types say
        behind.sendall(hiredis.pack_command(words))
        replies: Any = hiredis.Reader(notEnoughData=self)
        raw = b""
        while replies.gets() is self:
            data = behind.recv(_CHUNK_BYTES)
            if not data:
                raise OSError("the server behind is gone")
            replies.feed(data)
            raw += data
        return raw
