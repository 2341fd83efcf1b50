"""``python -m tests.system.half_open``: cut clients off with no FIN or RST; the server must notice.

The clients are in a network namespace of their own, at the end of a virtual cable that is cut; a real server
on a real Redis is at the other end. They go on sending keepalives. Others, on this side, send them all the
time. Each client that was cut off must be reported offline, for silence, in [T, T + tick + 0.2 s] after its
last packet that got through, or later by what the hypervisor took of a processor. The exit status is 1 if one
was not, or if anything was reported of the others. Needs Linux, root and ``ip``, and the ``embedded`` extra.
"""

import _socket
import argparse
import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from benchmarks.scale.play import Reader
from loadtest.outcome import percentile
from loadtest.redis_contents import Data
from loadtest.stream_events import StreamEvent
from loadtest.usage import Stolen
from presence.loadtest.client_loop import NO_CONNECTION, ClientLoop, LoopClient
from presence.loadtest.server_address import reset_on_close
from presence.protocol import Code
from tests.support.preloaded import PreloadedServer

T = TypeVar("T")

BEAT_SHARE: Final = 0.4  # of T: how often clients send keepalives
SLACK_S: Final = 0.2  # for the way from the tick to the stream
STEADY_SHARE: Final = 0.25  # so many more clients are not cut off
PAUSE_S: Final = 0.1  # without keepalives before the cut: what was sent got through
LINGER_S: Final = 1.0  # after the last that is due, for events too late or too many
LOGIN_TIMEOUT_S: Final = 10.0
_MS: Final = 0.001  # an entry's id is the millisecond in which it was written
_ESTABLISHED: Final = 1  # linux/tcp_states.h
_CLONE_NEWNET: Final = 0x40000000  # linux/sched.h
PREFIX_BITS: Final = 30  # of a network for two


def missing_requirement() -> str:
    """Return what this needs and the machine lacks, or ""."""
    if os.geteuid() != 0:
        return "root"
    if shutil.which("ip") is None:
        return "ip (of iproute2)"
    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(_enter_new_namespace).result()
        except OSError as error:
            return f"a network namespace ({error.strerror})"
    return ""


def own_host() -> str:
    """Return an address for this side that two concurrent runs hardly share."""
    return f"10.213.{os.getpid() % 256}.1"


class Namespace:
    """A network at the end of a virtual cable, which can be cut; for a ``with`` block. Needs root.

    It has no name: it is the namespace of one thread, and of the sockets that were made there, which other
    threads may use. Once these are gone the kernel removes it with the cable.

    Args:
        host: address of this side, for a server; the other side gets the next one.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        front, _, last = host.rpartition(".")
        self._peer = f"{front}.{int(last) + 1}"
        self._our_link, self._their_link = f"half{os.getpid()}", f"open{os.getpid()}"
        self._inside = ThreadPoolExecutor(1)

    def __enter__(self) -> "Namespace":
        with contextlib.ExitStack() as stack:
            stack.callback(self._inside.shutdown)
            self._inside.submit(self._set_up).result()
            stack.callback(_ip, "link", "delete", self._our_link)
            _ip("address", "add", f"{self.host}/{PREFIX_BITS}", "dev", self._our_link)
            _ip("link", "set", self._our_link, "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def sockets(self, count: int) -> list[socket.socket]:
        """Return new TCP sockets inside the namespace; open ones keep it alive."""
        return self._inside.submit(lambda: [_inside_socket() for _ in range(count)]).result()

    def call(self, function: Callable[[], T]) -> T:
        """Return what a function returns inside the namespace; a process that it starts stays there."""
        return self._inside.submit(function).result()

    def cut(self) -> None:
        """Drop all packets, in both directions, without a FIN or reset."""
        self._inside.submit(_ip, "link", "set", self._their_link, "down").result()

    def is_cut(self) -> bool:
        """Whether this side has no carrier."""
        return Path(f"/sys/class/net/{self._our_link}/carrier").read_text().strip() == "0"

    def _set_up(self) -> None:
        _enter_new_namespace()
        peer = ("peer", "name", self._our_link, "netns", str(os.getpid()))
        _ip("link", "add", "name", self._their_link, "type", "veth", *peer)
        _ip("address", "add", f"{self._peer}/{PREFIX_BITS}", "dev", self._their_link)
        _ip("link", "set", self._their_link, "up")


def _inside_socket() -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    # When it is closed nothing is left of it; else the kernel would try for minutes to say so.
    reset_on_close(sock)
    return sock


def _enter_new_namespace() -> None:
    """Move this thread to a new network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class _Client(LoopClient):
    """Logs in once, sends keepalives until told to stop, and records when it last sent.

    Args:
        sock: to connect with, of the network that is cut; None: of this one.
    """

    def __init__(self, loop: ClientLoop, uid: str, sock: socket.socket | None) -> None:
        super().__init__(loop, uid)
        self.reconnects = False
        self.last_sent_at = 0.0
        self._sock = sock

    def make_socket(self) -> _socket.socket:
        return self._sock or super().make_socket()

    def send(self, frame: bytes) -> None:
        self.last_sent_at = time.monotonic()
        super().send(frame)

    @property
    def unacknowledged(self) -> int:
        """Bytes that were sent and not acknowledged, by the kernel's count."""
        (size,) = struct.unpack("i", fcntl.ioctl(self.fd, termios.TIOCOUTQ, bytes(4)))
        return int(size)

    @property
    def is_established(self) -> bool:
        """Whether neither side has ended the connection, by the kernel's state."""
        if self.fd == NO_CONNECTION:
            return False
        with socket.socket(fileno=os.dup(self.fd)) as twin:
            return twin.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED


@dataclass(frozen=True)
class HalfOpenResult:
    delays_s: list[float]  # from each client's last packet that got through to its event in the stream
    unacknowledged: int  # clients cut off whose packets, sent afterwards, nobody has acknowledged
    established: int  # clients cut off who were told nothing of an end, in the end
    steady: int  # clients who were not cut off
    stolen_s: float  # see `Stolen`
    broken: list[str]  # promises that were, in words

    def lines(self) -> list[str]:
        names = {"min": 0.0, "p50": 0.5, "p99": 0.99, "max": 1.0}
        found = ", ".join(f"{name} {percentile(self.delays_s, share):.3f}" for name, share in names.items())
        return [
            f"offline {len(self.delays_s)}: {found} s after the last packet that got through",
            f"cut off: {self.unacknowledged} with packets that nobody acknowledged, {self.established} who"
            " heard of no end; not cut off, and beating: " + str(self.steady),
            f"stolen of a processor in its worst second: {self.stolen_s * 1000:.0f} ms",
            *self.broken,
        ]


def run(host: str, clients: int, idle_timeout: float, tick: float) -> HalfOpenResult:
    """Log clients in, cut them off, and judge their offline events."""
    beat_s = BEAT_SHARE * idle_timeout
    flags = ("--host", host, "--insecure", "--idle-timeout", f"{idle_timeout:g}", "--tick", f"{tick:g}")
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Namespace(host))
        data = stack.enter_context(Data())
        server = stack.enter_context(PreloadedServer("--redis", data.url, *flags))
        reader = stack.enter_context(contextlib.closing(Reader(data.url)))
        loop = stack.enter_context(ClientLoop(server.address, beat_s=beat_s))
        socks = [*network.sockets(clients), *[None] * int(STEADY_SHARE * clients)]
        every_client = [_Client(loop, f"user{number}", sock) for number, sock in enumerate(socks)]
        loop.log_in(every_client, LOGIN_TIMEOUT_S)
        loop.run(beat_s + tick)
        time.sleep(PAUSE_S)
        network.cut()
        gone, steady = every_client[:clients], every_client[clients:]
        last = {client.uid: client.last_sent_at for client in gone}
        with Stolen() as stolen:
            loop.run(idle_timeout + tick + SLACK_S + LINGER_S)
        unacknowledged = sum(client.fd != NO_CONNECTION and client.unacknowledged > 0 for client in gone)
        established = sum(client.is_established for client in gone)
        offline = [event for event in reader.events if event.type == "offline"]
        broken = [*reader.broken, *server.failures()]
        if not network.is_cut() or unacknowledged < clients or established < clients:
            broken.append("not all were cut off without a word")
        lost = sum(not client.is_established for client in steady)
    latest_s = idle_timeout + tick + SLACK_S + stolen.worst_s
    delays, found = judge(offline, last, idle_timeout, latest_s)
    broken += [f"{lost} of those who were not cut off lost their connection"] if lost else []
    return HalfOpenResult(delays, unacknowledged, established, len(steady), stolen.worst_s, broken + found)


def judge(
    offline: Iterable[StreamEvent], last: Mapping[str, float], earliest_s: float, latest_s: float
) -> tuple[list[float], list[str]]:
    """Compare the offline events with when each client's last packet got through, in monotonic seconds.

    Returns:
        The delays in seconds, and what is wrong with the events.
    """
    delays: dict[str, float] = {}
    broken = []
    for event in offline:
        if event.uid not in last or event.uid in delays or event.code != Code.IDLE_TIMEOUT:
            broken.append(f"nobody should have been told of {event}")
        else:
            delays[event.uid] = event.written_at + _MS - last[event.uid]
    broken += [f"{uid} is not offline" for uid in last if uid not in delays]
    broken += [f"{uid} early: {delay:.3f} s" for uid, delay in delays.items() if delay < earliest_s]
    broken += [f"{uid} late: {delay:.3f} s" for uid, delay in delays.items() if delay > latest_s]
    return [*delays.values()], broken


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.half_open", description=__doc__)
    add = parser.add_argument
    add("--clients", type=int, default=200, help="clients to cut off")
    add("--idle-timeout", type=float, default=30.0, help="the server's T, seconds")
    add("--tick", type=float, default=1.0, help="the server's tick, seconds")
    add("--host", default=own_host(), help="address for the server, of a network of four that nobody uses")
    given = parser.parse_args(words)
    if missing := missing_requirement():
        print(f"tests.system.half_open needs {missing}")
        return 1
    result = run(given.host, given.clients, given.idle_timeout, given.tick)
    print("\n".join(result.lines()))
    print("tests.system.half_open: " + ("FAILED" if result.broken else "passed"))
    return 1 if result.broken else 0


if __name__ == "__main__":
    sys.exit(main())
