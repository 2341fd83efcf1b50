"""A cable between one node and Redis, which can be cut.

While it is cut nothing is read, passed on or answered, in neither direction, and connections stay open, as
when a network swallows packets. What was sent meanwhile arrives late, when it is mended: calls that their
caller gave up long ago among them.
"""

import selectors
import socket
import threading
from collections import deque
from typing import Final

READ_BYTES: Final = 65536
MENDED_LOOK_S: Final = 0.01
_IN, _OUT = selectors.EVENT_READ, selectors.EVENT_WRITE


class Cable:
    """A proxy on loopback, in a thread of its own.

    Args:
        target: path of the Unix socket that it leads to.

    Attributes:
        url: the end that a node is given.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, _IN)
        self._mended, self._closing = threading.Event(), threading.Event()
        self._mended.set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> "Cable":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closing.set()
        self.mend()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr] # sockets, all of them
        self._selector.close()

    def cut(self) -> None:
        """Let nothing through any more."""
        self._mended.clear()

    def mend(self) -> None:
        """Let everything through again."""
        self._mended.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._mended.wait()
            for key, events in self._selector.select(MENDED_LOOK_S):
                if key.fileobj is self._listener:
                    self._accept()
                elif events & _IN:
                    key.data.read()
                else:
                    key.data.write()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(self._target)
        except OSError:
            near.close()
            far.close()
            return
        here, there = _End(near, self._selector), _End(far, self._selector)
        here.other, there.other = there, here


class _End:
    """One end of a connection that is passed through."""

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        self.other = self
        self._sock = sock
        self._selector = selector
        self._unsent: deque[bytes] = deque()
        self._finishing = False
        sock.setblocking(False)
        selector.register(sock, _IN, self)

    def read(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.other.send(data)
        else:
            self._close()
            self.other.finish()

    def send(self, data: bytes) -> None:
        self._unsent.append(data)
        self.write()

    def finish(self) -> None:
        """Pass on what is there, then close."""
        self._finishing = True
        self.write()

    def write(self) -> None:
        try:
            while self._unsent:
                data = self._unsent.popleft()
                if rest := data[self._sock.send(data) :]:
                    self._unsent.appendleft(rest)
        except BlockingIOError:
            self._unsent.appendleft(data)
            self._selector.modify(self._sock, _IN | _OUT, self)
        except OSError:
            self._close()
            self.other.finish()
        else:
            if self._finishing:
                self._close()
            elif self._sock.fileno() >= 0:
                self._selector.modify(self._sock, _IN, self)

    def _close(self) -> None:
        if self._sock.fileno() >= 0:
            self._selector.unregister(self._sock)
            self._sock.close()
