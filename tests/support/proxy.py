"""A proxy that disturbs the connections through it: between clients and nodes, between nodes and Redis.

    with Proxy("/run/redis.sock") as proxy:      # or Proxy(("127.0.0.1", 6379))
        node = start(redis=proxy.url)
        proxy.disturb(ProxyFaults(latency_s=0.2))     # of each way; up=False: only of what comes back
        proxy.heal()
        proxy.drop_reply(10)
        assert proxy.injected.replies_dropped    # what was truly done

By hand, a Redis that takes 200 ms for a call::

    python -m tests.support.proxy --listen 6400 --target 127.0.0.1:6379 --latency 0.1 &
    presence serve --redis redis://127.0.0.1:6400

Its sockets live in an event loop in a thread of its own. What comes in on one side waits in the queue of its
way, each piece with the moment before which it must not arrive. So do the end of a connection and its reset.
"""

import argparse
import asyncio
import contextlib
import errno
import random
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Final, Self, TypeVar

import hiredis

from presence.loadtest.server_address import reset_on_close

T = TypeVar("T")
Target = str | tuple[str, int]
"""Path of a Unix socket, or host (an IPv4 address) and port."""

BACKLOG: Final = 4096  # connections that wait while a way is a blackhole
READ_BYTES: Final = 65_536
MAX_QUEUED_BYTES: Final = 1 << 20  # of one way of one connection, as a large TCP window; then it is not read
QUIET_S: Final = 0.02  # after the last answer; more of the same request would come by then
CALL_TIMEOUT_S: Final = 10.0  # for what is asked of the thread; it never waits for anything but its sockets
REPORT_INTERVAL_S: Final = 1.0
_NOTHING: Final = object()


@dataclass(frozen=True)
class ProxyFaults:
    """What happens to the bytes of one way. They always arrive in order and complete.

    Attributes:
        latency_s: added to every piece.
        jitter_s: added at random, up to this.
        slice_bytes: pieces of 1 to this many bytes, each sent by itself; 0: as received.
        blackhole: nothing arrives. What is sent is held and arrives once this ends, as in a network that
            drops packets and a TCP that repeats them. Meanwhile no connection can be made.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    slice_bytes: int = 0
    blackhole: bool = False


CLEAR: Final = ProxyFaults()


@dataclass
class Injected:
    """What a proxy has really done so far.

    Attributes:
        delayed_bytes: delayed by latency or jitter.
        held_bytes: held in a blackhole.
        cuts: places where bytes that arrived together were sent apart.
        replies_dropped: requests that were carried out and whose reply was dropped.
    """

    delayed_bytes: int = 0
    held_bytes: int = 0
    cuts: int = 0
    replies_dropped: int = 0

    def since(self, before: "Injected") -> "Injected":
        """Return what was done after `before`."""
        names = [field.name for field in fields(self)]
        return Injected(**{name: getattr(self, name) - getattr(before, name) for name in names})


class _Way(Enum):
    UP = "towards the target"
    DOWN = "back"


class Proxy:
    """Passes connections on to a target, and injects faults; for a ``with`` block.

    Methods may be called from any thread, and have taken effect when they return. Connections begin and end
    on both sides, with a FIN or a reset.

    Args:
        port: where to listen; 0 picks one.

    Attributes:
        address: where it listens.
        url: the same for a node's Redis.
    """

    def __init__(self, target: Target, port: int = 0, *, host: str = "127.0.0.1") -> None:
        self._targets: tuple[Target, ...] = (target,)
        self._listener = socket.create_server((host, port), backlog=BACKLOG)
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self.url = f"redis://{self.address[0]}:{self.address[1]}"
        self._shared = _Shared()
        self._is_refusing = False
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self._call(self._set_faults)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def injected(self) -> Injected:
        return replace(self._shared.injected)

    @property
    def connections(self) -> int:
        return len(self._shared.connections)

    def disturb(self, faults: ProxyFaults, *, up: bool = True, down: bool = True) -> None:
        """Replace the faults of the ways towards the target and back."""
        ways = [*([_Way.UP] if up else []), *([_Way.DOWN] if down else [])]
        self._call(lambda: self._set_faults(*ways, faults=faults))

    def blackhole(self, *, up: bool = True, down: bool = True) -> None:
        """Let nothing through any more; see `ProxyFaults.blackhole`."""
        self.disturb(ProxyFaults(blackhole=True), up=up, down=down)

    def refuse(self) -> None:
        """End each new connection as soon as it is made."""
        self._call(lambda: setattr(self, "_is_refusing", True))

    def drop_reply(self, requests: int, *, containing: bytes = b"") -> None:
        """Drop the replies to the next requests: for a Redis target, and clients that wait for answers.

        A request, or whole pipeline, is passed on; once each command is answered, and so was carried out, the
        answers are dropped and the connection is reset. 0 ends that.

        Args:
            requests: how many.
            containing: only those with these bytes in their first 64 KiB, such as a script's digest.
        """

        def arm() -> None:
            self._shared.drops_left, self._shared.containing = requests, containing

        self._call(arm)

    def heal(self, *, reset: bool = False) -> None:
        """End all faults. What was held arrives now, or, with `reset`, all connections are reset instead."""

        def heal() -> None:
            if reset:
                self._reset(1.0)
            self._is_refusing = False
            self._shared.drops_left = 0
            self._set_faults(*_Way)

        self._call(heal)

    def reset(self, share: float = 1.0) -> int:
        """Reset that share of the connections, at random, towards both sides; return how many."""
        return self._call(lambda: self._reset(share))

    def retarget(self, *targets: Target) -> None:
        """Lead new connections to another target, as a name with a new address does.

        With several targets each connection goes to a random one, as behind a load balancer.
        """
        self._call(lambda: setattr(self, "_targets", targets))

    def close(self) -> None:
        """Close the proxy and its connections; a second call does nothing."""
        if self._thread.is_alive():
            self._shared.loop.call_soon_threadsafe(self._shared.loop.stop)
            self._thread.join()

    def _call(self, act: Callable[[], T]) -> T:
        """Run an action in the proxy's thread; return its result."""
        answer: Future[T] = Future()

        def job() -> None:
            try:
                answer.set_result(act())
            except BaseException as error:  # it is raised where it was asked for
                answer.set_exception(error)

        self._shared.loop.call_soon_threadsafe(job)
        return answer.result(CALL_TIMEOUT_S)

    def _run(self) -> None:
        loop = self._shared.loop
        try:
            loop.run_forever()
        finally:
            for connection in [*self._shared.connections]:
                connection.close(reset=False)
            loop.remove_reader(self._listener)
            self._listener.close()
            loop.close()

    def _accept(self) -> None:
        try:
            near, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        target = random.choice(self._targets)
        far = socket.socket(socket.AF_UNIX if isinstance(target, str) else socket.AF_INET)
        for sock in (near, far):
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._is_refusing or far.connect_ex(target) not in {0, errno.EINPROGRESS}:
            _close(near, reset=True)
            far.close()
        else:
            _ProxiedConnection(near, far, self._shared)

    def _set_faults(self, *ways: _Way, faults: ProxyFaults = CLEAR) -> None:
        shared = self._shared
        shared.faults.update(dict.fromkeys(ways, faults))
        if any(each.blackhole for each in shared.faults.values()):
            shared.loop.remove_reader(self._listener)
        else:
            shared.loop.add_reader(self._listener, self._accept)
        for connection in [*shared.connections]:
            connection.up.send()
            connection.down.send()

    def _reset(self, share: float) -> int:
        chosen = [each for each in self._shared.connections if random.random() < share]
        for connection in chosen:
            connection.close(reset=True)
        return len(chosen)


class _Shared:
    """What the connections of a proxy share; used in its thread only."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.connections: set[_ProxiedConnection] = set()
        self.faults = dict.fromkeys(_Way, CLEAR)
        self.injected = Injected()
        self.drops_left = 0
        self.containing = b""


class _ProxiedConnection:
    """Two sockets, near to the client and far to the target, and the two directions between them."""

    def __init__(self, near: socket.socket, far: socket.socket, shared: _Shared) -> None:
        self._near, self._far = near, far
        self._shared = shared
        self.up = _Pipe(self, _Way.UP, near, far, shared)
        self.down = _Pipe(self, _Way.DOWN, far, near, shared)
        self.is_closed = False
        self._request: _Request | None = None
        self._last_way: _Way | None = None
        shared.connections.add(self)
        shared.loop.add_writer(far, self._connected)

    def _connected(self) -> None:
        self._shared.loop.remove_writer(self._far)
        if self._far.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.close(reset=True)
        else:
            self.up.resume_reading()
            self.down.resume_reading()

    def close(self, *, reset: bool) -> None:
        self.is_closed = True
        self._shared.connections.discard(self)
        for sock in (self._near, self._far):
            self._shared.loop.remove_reader(sock)
            self._shared.loop.remove_writer(sock)
            _close(sock, reset=reset)

    def close_if_finished(self) -> None:
        """Close the connection if nothing more can go through in either direction."""
        if self.up.is_over and self.down.is_over and not self.is_closed:
            self.close(reset=False)

    def mark_broken(self, way: _Way) -> None:
        """Nothing more can be sent that way; what its receiver has sent before is still passed on."""
        (self.down if way is _Way.UP else self.up).is_broken = True

    def intercept(self, way: _Way, data: bytes) -> bytes:
        """Watch for a request whose reply is to be dropped; return the bytes to pass on."""
        shared, last, self._last_way = self._shared, self._last_way, way
        if self._request is None:
            # While a request is under way it is too late to lose its reply.
            is_first = way is _Way.UP and last is not _Way.UP
            if not is_first or not shared.drops_left or shared.containing not in data:
                return data
            shared.drops_left -= 1
            self._request = _Request()
        request = self._request
        try:
            if way is _Way.UP:
                request.add_request(data)
                return data
            request.add_reply(data)
        except hiredis.HiredisError:  # it was no request: others may be
            self._request = None
            return data if way is _Way.UP else request.reply
        if request.is_done:
            shared.loop.call_later(QUIET_S, self._drop_reply)
        return b""

    def _drop_reply(self) -> None:
        if not self.is_closed and self._request and self._request.is_done:
            self._shared.injected.replies_dropped += 1
            self.close(reset=True)


class _Pipe:
    """One way of a connection: a queue of pieces, each with its due time, in order.

    An empty piece is the sender's end, None its reset.

    Attributes:
        is_over: whether nothing more is sent: the end was passed on, or the receiver is gone.
        is_broken: whether nothing more can be sent to the source.
    """

    def __init__(
        self,
        connection: _ProxiedConnection,
        way: _Way,
        source: socket.socket,
        sink: socket.socket,
        shared: _Shared,
    ) -> None:
        self.is_over = self.is_broken = False
        self._connection = connection
        self._way = way
        self._source, self._sink = source, sink
        self._shared = shared
        self._queue: deque[tuple[float, bytes | None]] = deque()
        self._queued_bytes = 0
        self._last_due = 0.0
        self._is_send_scheduled = self._is_full = False

    def resume_reading(self) -> None:
        self._is_full = False
        self._shared.loop.add_reader(self._source, self._read)

    def _read(self) -> None:
        try:
            data = self._source.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._end(None)
            return
        if not data:
            self._end(None if self.is_broken else b"")
            return
        injected, faults = self._shared.injected, self._shared.faults[self._way]
        if faults.blackhole:
            injected.held_bytes += len(data)
        elif faults.latency_s or faults.jitter_s:
            injected.delayed_bytes += len(data)
        if not self.is_over and (data := self._connection.intercept(self._way, data)):
            self._queue_pieces(data, faults)
            self.send()
        if self._queued_bytes >= MAX_QUEUED_BYTES and not self._connection.is_closed:
            self._is_full = True
            self._shared.loop.remove_reader(self._source)

    def _end(self, piece: bytes | None) -> None:
        self._is_full = False
        self._shared.loop.remove_reader(self._source)
        self._queue_piece(piece, self._shared.faults[self._way])
        self.send()

    def _queue_pieces(self, data: bytes, faults: ProxyFaults) -> None:
        start = 0
        while start < len(data):
            length = random.randint(1, faults.slice_bytes) if faults.slice_bytes else len(data)
            self._shared.injected.cuts += start > 0
            self._queue_piece(data[start : start + length], faults)
            start += length
        self._queued_bytes += len(data)

    def _queue_piece(self, data: bytes | None, faults: ProxyFaults) -> None:
        due = time.monotonic() + faults.latency_s + random.uniform(0, faults.jitter_s)
        self._last_due = max(due, self._last_due)
        self._queue.append((self._last_due, data))

    def send(self) -> None:
        """Send the pieces that are due."""
        faults = self._shared.faults[self._way]
        while self._queue and not faults.blackhole and not self._connection.is_closed:
            due, data = self._queue[0]
            if (wait_s := due - time.monotonic()) > 0:
                self._schedule_send(wait_s)
                break
            if not data:
                self._pass_on_end(is_reset=data is None)
                return
            if not self._write(data):
                break
            if faults.slice_bytes:  # a turn for others, or the pieces arrive together
                self._schedule_send(0.0)
                break
        if self._is_full and self._queued_bytes < MAX_QUEUED_BYTES and not self._connection.is_closed:
            self.resume_reading()

    def _schedule_send(self, seconds: float) -> None:
        if not self._is_send_scheduled:
            self._is_send_scheduled = True
            self._shared.loop.call_later(seconds, self._send_scheduled)

    def _send_scheduled(self) -> None:
        self._is_send_scheduled = False
        self.send()

    def _write(self, data: bytes) -> bool:
        """Send a piece; return whether all of it was taken."""
        try:
            sent = self._sink.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # it is gone
            self._queue.clear()
            self._queued_bytes = 0
            self._connection.mark_broken(self._way)
            self._finish()
            return False
        self._queued_bytes -= sent
        if sent < len(data):
            self._queue[0] = (0.0, data[sent:])
            self._shared.loop.add_writer(self._sink, self._writable)
            return False
        self._queue.popleft()
        return True

    def _writable(self) -> None:
        self._shared.loop.remove_writer(self._sink)
        self.send()

    def _pass_on_end(self, *, is_reset: bool) -> None:
        self._queue.clear()
        if is_reset:
            self._connection.close(reset=True)
            return
        with contextlib.suppress(OSError):  # it has gone meanwhile
            self._sink.shutdown(socket.SHUT_WR)
        self._finish()

    def _finish(self) -> None:
        self.is_over = True
        self._connection.close_if_finished()


class _Request:
    """One request whose reply is to be dropped: a command, or a pipeline sent together."""

    def __init__(self) -> None:
        self._requests = hiredis.Reader(notEnoughData=_NOTHING)
        self._replies = hiredis.Reader(notEnoughData=_NOTHING)
        self._outstanding = 0
        self.reply = b""

    def add_request(self, data: bytes) -> None:
        """Count the commands in what was sent; raises `hiredis.HiredisError` if it is no command."""
        self._outstanding += _count_complete(self._requests, data)

    def add_reply(self, data: bytes) -> None:
        """Count the answers, and keep them; raises `hiredis.HiredisError` if it is no answer."""
        self.reply += data
        self._outstanding -= _count_complete(self._replies, data)

    @property
    def is_done(self) -> bool:
        """Whether each command has its answer."""
        return bool(self.reply) and self._outstanding <= 0 and not self._requests.has_data()


def _count_complete(reader: "hiredis.Reader", data: bytes) -> int:
    """Return how many commands or answers the reader has complete now."""
    reader.feed(data)
    count = 0
    while reader.gets() is not _NOTHING:
        count += 1
    return count


def _close(sock: socket.socket, *, reset: bool) -> None:
    """Close a socket; with `reset` the peer gets a reset, if the kind of socket can."""
    if reset:
        with contextlib.suppress(OSError):
            reset_on_close(sock)
    sock.close()


def parse_target(text: str) -> Target:
    """Return what ``host:port`` or a path names; raises ValueError."""
    if "/" in text:
        return text
    host, _, port = text.rpartition(":")
    return host or "127.0.0.1", int(port)


def main() -> int:
    """Proxy connections until Ctrl-C, and print each second what was injected."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.proxy", description=main.__doc__)
    add = parser.add_argument
    add(
        "--listen",
        type=parse_target,
        default="0",
        metavar="[HOST:]PORT",
        help="where clients connect; 0 picks one",
    )
    add(
        "--target",
        type=parse_target,
        required=True,
        metavar="HOST:PORT",
        help="where to; or path of a Unix socket",
    )
    add("--latency", type=float, default=0.0, help="seconds by which all bytes are late, each way")
    add("--jitter", type=float, default=0.0, help="up to so many seconds more, by chance")
    add("--slice", type=int, default=0, help="send in pieces of 1 to so many bytes")
    given = parser.parse_args()
    host, port = given.listen
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell has it ignored in the background
        signal.signal(number, signal.default_int_handler)
    with Proxy(given.target, port, host=host) as proxy, contextlib.suppress(KeyboardInterrupt):
        proxy.disturb(ProxyFaults(given.latency, given.jitter, given.slice))
        print(f"ready {proxy.address[0]}:{proxy.address[1]}", flush=True)
        while True:
            time.sleep(REPORT_INTERVAL_S)
            print(f"open {proxy.connections}  {proxy.injected}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
