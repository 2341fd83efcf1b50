"""Load for a server under attack: visitors who log in or never do, floods, and clients who ask.

Each function plays one kind for a while and returns what came of it. Load is open-loop: an attempt is made
when it is due, however slow the server is, and its time counts from then. It is made in processes of its own
(`processes`), so that it and whoever measures do not wait for each other.
"""

import gc
import math
import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from presence import protocol
from presence.loadtest.client_loop import NO_CONNECTION, ClientLoop, LoopClient, login_frame
from presence.loadtest.server_address import raise_file_limit
from presence.protocol import Code, Kind

Address = tuple[str, int]

LEAD_S = 0.5  # from an order to the first connection
SOURCES = 64  # addresses to connect from
ANSWER_TIMEOUT_S = 15.0  # for the last answers
MAX_VISITORS = 12_000  # visitors; more are late rather than made
PAUSE_S = 0.01
GRANTED, UNANSWERED, LOST = 0, -1, -2
PIECE_BYTES = 16_384  # of a flood
PIECE_INTERVAL_S = 1.0  # between two pieces
KEEPALIVE_WITH_ID = protocol.encode(protocol.keepalive(7))


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Keep that many processes ready, for the length of a ``with`` block."""
    context = multiprocessing.get_context("spawn")  # a fork would share sockets, and threads' locks
    with ProcessPoolExecutor(count, mp_context=context, initializer=_init_process) as pool:
        for started in [pool.submit(raise_file_limit) for _ in range(count)]:
            started.result()
        yield pool


def _init_process() -> None:
    raise_file_limit()
    gc.disable()  # nothing here makes cycles, and a collection would make load late


class Visit(NamedTuple):
    """One client that connected once."""

    due: float  # monotonic seconds; of a client that waits for the server's close: when it connected
    took_s: float  # until the login was granted or the connection ended; inf: neither
    code: int  # `GRANTED`, the server's reason code, `UNANSWERED`, or `LOST`: closed without a goodbye
    retry_after: float = 0.0  # seconds that a refusal named
    sent: int = 1  # pieces of its input


class _Visitor(LoopClient):
    is_member = False

    def __init__(self, loop: ClientLoop, due: float, pieces: Sequence[bytes], ended: list[Visit]) -> None:
        super().__init__(loop, "")
        self.reconnects = self.is_reset = False
        self._due, self._pieces, self._ended = due, pieces, ended
        self._sent = 0

    def on_connected(self) -> None:
        if self.fd != NO_CONNECTION and self._sent < len(self._pieces):
            self.send(self._pieces[self._sent])
            self._sent += 1
            if self._sent < len(self._pieces):
                self.loop.call_at(time.monotonic() + PIECE_INTERVAL_S, self.on_connected)

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        self.close(reset=self.is_reset)
        self.finish(now, GRANTED)

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        payload_or_lost = payload or {"code": LOST}
        self.finish(now, payload_or_lost["code"], payload_or_lost.get("retry_after", 0.0))

    def finish(self, now: float, code: int, retry_after: float = 0.0) -> None:
        self._ended.append(Visit(self._due, now - self._due, code, retry_after, self._sent))


def visits(
    address: Address,
    frames: Sequence[bytes | Sequence[bytes]] | str,
    count: int,
    per_second: float,
    *,
    seconds: float = ANSWER_TIMEOUT_S,
    begin: float = 0.0,
    sources: Sequence[str] | int = SOURCES,
    hangs_up: bool = True,
    resets: bool = False,
) -> list[Visit]:
    """Let clients connect, send their frames, and leave when the login is granted.

    Args:
        says: what each sends, by turns: in one piece, or one piece per second. It is made in advance, because
            a login takes longer to sign than to send. Or a prefix of uids for plain logins.
        per_second: how many are due per second.
        seconds: how long to wait for the last.
        begin: monotonic seconds at which the first is due; 0.0: immediately.
        sources: addresses to connect from, in turn; or how many.
        hangs_up: whether a refused client leaves; else it waits for the server's close.
        resets: whether every second connection is closed with a reset.

    Returns:
        The visits, in the order in which they ended.
    """
    ended: list[Visit] = []
    begin = begin or time.monotonic()

    def connect_next(number: int) -> None:
        if len(loop) >= MAX_VISITORS:
            loop.call_at(time.monotonic() + PAUSE_S, partial(connect_next, number))
            return
        due = begin + number / per_second
        frame = login_frame(f"{frames}-{number}") if isinstance(frames, str) else frames[number % len(frames)]
        since = due if hangs_up else time.monotonic()  # how late we are is no part of a stay
        visitor = _Visitor(loop, since, [frame] if isinstance(frame, bytes) else frame, ended)
        visitor.closes_on_goodbye, visitor.is_reset = hangs_up, resets and number % 2 == 1
        visitor.connect()
        if number + 1 < count:
            loop.call_at(due + 1 / per_second, partial(connect_next, number + 1))

    with ClientLoop(address, sources=sources) as loop:
        loop.call_at(begin, partial(connect_next, 0))
        loop.run(begin + count / per_second + seconds - time.monotonic(), lambda: len(ended) == count)
        for client in loop.connected_clients():
            if isinstance(client, _Visitor):
                client.finish(math.inf, UNANSWERED)
    return ended


class Flooded(NamedTuple):
    """What a flooder sent, how often it was disconnected with 311, and how often otherwise."""

    packets: int
    cut_off: int
    otherwise: int


class _Flooder(LoopClient):
    """Sends as much as the connection takes; reconnects whenever it ends."""

    is_member = False

    def __init__(self, loop: ClientLoop, frame: bytes) -> None:
        super().__init__(loop, "flooder")
        self.reconnects = False
        self.cut_off = self.otherwise = self.pieces = 0
        self._piece = frame * max(1, PIECE_BYTES // len(frame))

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        self.flush()

    def flush(self) -> None:
        super().flush()
        if self.fd != NO_CONNECTION and self.is_logged_in and not self.has_unsent:
            self.pieces += 1
            self.send_later(self._piece)

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        has_reason = payload is not None and payload["code"] == Code.RATE_LIMITED
        self.cut_off += has_reason
        self.otherwise += not has_reason
        self.connect()


def flood(address: Address, frame: bytes, begin: float, seconds: float) -> Flooded:
    """Send a frame over one connection as fast as it is taken."""
    with ClientLoop(address) as loop:
        flooder = _Flooder(loop, frame)
        loop.call_at(begin, flooder.connect)
        loop.run(begin + seconds - time.monotonic())
        pieces = flooder.pieces
    return Flooded(pieces * max(1, PIECE_BYTES // len(frame)), flooder.cut_off, flooder.otherwise)


class _Asker(LoopClient):
    def __init__(self, loop: ClientLoop, uid: str, every_s: float, times: list[float]) -> None:
        super().__init__(loop, uid)
        self._every_s, self._times = every_s, times
        self._asked = 0.0

    def ask(self, due: float) -> None:
        self._asked = time.monotonic()
        self.send(KEEPALIVE_WITH_ID)
        self.loop.call_at(due + self._every_s, partial(self.ask, due + self._every_s))

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        if kind == Kind.OK:
            self._times.append(now - self._asked)


def ask(
    address: Address, name: str, clients: int, every_s: float, begin: float, seconds: float
) -> list[float]:
    """Let clients ask, each at its own moments; return the seconds from sending to the answer."""
    times: list[float] = []
    with ClientLoop(address) as loop:
        askers = [_Asker(loop, f"{name}-{number}", every_s, times) for number in range(clients)]
        loop.connect_all(askers)
        loop.run(begin - time.monotonic(), lambda: loop.count_logged_in() == clients)
        now = time.monotonic()
        for number, asker in enumerate(askers):
            due = max(begin, now) + number * every_s / clients
            loop.call_at(due, partial(asker.ask, due))
        loop.run(begin + seconds - time.monotonic())
        if loop.endings:
            raise RuntimeError(f"some of those who ask lost their connection: {dict(loop.endings)}")
    return times
