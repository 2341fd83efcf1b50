"""A network of its own at the end of a virtual cable, which can be cut.

The network namespace has no name: it is the namespace of one thread, and of the sockets that were made there,
which other threads may use. When these are gone, whatever has ended them, the kernel removes it, and with it
both ends of the cable.
"""

import contextlib
import ctypes
import os
import shutil
import socket
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

_CLONE_NEWNET: Final = 0x40000000  # linux/sched.h
PREFIX_BITS: Final = 30  # of a network for two


def lacking() -> str:
    """Return what this needs and is not here; "" if all is."""
    if os.geteuid() != 0:
        return "root"
    if shutil.which("ip") is None:
        return "ip (of iproute2)"
    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(_leave).result()
        except OSError as error:
            return f"a network namespace ({error.strerror})"
    return ""


def own_host() -> str:
    """Return an address for this side that two runs at once will hardly share."""
    return f"10.213.{os.getpid() % 256}.1"


class Namespace:
    """For a ``with`` block; needs root.

    Args:
        host: address of this side, for a server; the other side gets the next one.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        front, _, last = host.rpartition(".")
        self._peer = f"{front}.{int(last) + 1}"
        self._ours, self._theirs = f"half{os.getpid()}", f"open{os.getpid()}"
        self._inside = ThreadPoolExecutor(1)

    def __enter__(self) -> "Namespace":
        with contextlib.ExitStack() as stack:
            stack.callback(self._inside.shutdown)
            self._inside.submit(self._set_up).result()
            stack.callback(_ip, "link", "delete", self._ours)
            _ip("address", "add", f"{self.host}/{PREFIX_BITS}", "dev", self._ours)
            _ip("link", "set", self._ours, "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def sockets(self, count: int) -> list[socket.socket]:
        """Return new TCP sockets that are in the other network; those left open keep it there."""
        return self._inside.submit(lambda: [_socket() for _ in range(count)]).result()

    def cut(self) -> None:
        """Let nothing through any more, either way, without a word to anybody."""
        self._inside.submit(_ip, "link", "set", self._theirs, "down").result()

    def is_cut(self) -> bool:
        """Whether this side has no carrier."""
        return Path(f"/sys/class/net/{self._ours}/carrier").read_text().strip() == "0"

    def _set_up(self) -> None:
        _leave()
        peer = ("peer", "name", self._ours, "netns", str(os.getpid()))
        _ip("link", "add", "name", self._theirs, "type", "veth", *peer)
        _ip("address", "add", f"{self._peer}/{PREFIX_BITS}", "dev", self._theirs)
        _ip("link", "set", self._theirs, "up")


def _socket() -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    # When it is closed nothing is left of it; else the kernel would try for minutes to say so.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return sock


def _leave() -> None:
    """Take this thread to a network of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
