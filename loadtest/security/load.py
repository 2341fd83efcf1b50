"""Load for a server under attack: logins, strangers who never log in, floods, and clients who ask.

Each function plays one kind for a while and returns what came of it. Load is open-loop: an attempt is made
when it is due, however slow the server is, and its time counts from then. It is made in processes of its own
(`processes`), so that it and whoever measures do not wait for each other.
"""

import gc
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import protocol
from loadtest.client_loop import AWAY, Client, ClientLoop, plain_login
from loadtest.connection import raise_file_limit
from protocol import Code, Kind

Address = tuple[str, int]

LEAD_S = 0.5  # from an order to the first connection
SOURCES = 64  # addresses to connect from
OPENS_A_TURN = 16  # between two looks at what was answered
PATIENCE_S = 15.0  # for the last answers
GRANTED, UNANSWERED, LOST = 0, -1, -2
PIECE_BYTES = 16_384  # of a flood
ASKING = protocol.encode(protocol.keepalive(7))


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Have so many processes ready, for the length of a ``with`` block."""
    context = multiprocessing.get_context("spawn")  # a fork would share sockets, and threads' locks
    with ProcessPoolExecutor(count, mp_context=context, initializer=_begin) as pool:
        for started in [pool.submit(raise_file_limit) for _ in range(count)]:
            started.result()
        yield pool


def _begin() -> None:
    raise_file_limit()
    gc.disable()  # nothing here makes cycles, and a collection would make load late


class Attempt(NamedTuple):
    """What came of an attempt at a login.

    Attributes:
        due: monotonic seconds.
        took_s: from then to the answer, or to the end without one.
        code: `GRANTED`, the reason code of the refusal, `UNANSWERED` or `LOST`: closed without a word.
        retry_after: seconds that the refusal named; 0.0 without.
    """

    due: float
    took_s: float
    code: int
    retry_after: float


@dataclass(frozen=True)
class Logins:
    """What attempts are to be made: connect, log in, read the answer, close.

    Attributes:
        address: the server's.
        frames: logins that were made before, because it takes longer to sign one than to send it; after the
            last comes the first again. Or what the names of users begin with, who say no more than that.
        count: how many.
        per_second: how many are due in a second.
        begin: monotonic seconds at which the first is due; 0.0: immediately.
        sources: addresses to connect from, in turn; or how many.
        reset: whether every second connection is closed with a reset.
        at_once: how many may be under way; more are late rather than made.
    """

    address: Address
    frames: Sequence[bytes] | str
    count: int
    per_second: float
    begin: float = 0.0
    sources: Sequence[str] | int = SOURCES
    reset: bool = False
    at_once: int = 10_000

    def frame(self, number: int) -> bytes:
        """Return the login of an attempt."""
        if isinstance(self.frames, str):
            return plain_login(f"{self.frames}-{number}")
        return self.frames[number % len(self.frames)]


class _Login(Client):
    is_member = False

    def __init__(
        self, loop: ClientLoop, frame: bytes, due: float, tell: Callable[[Attempt], object], *, reset: bool
    ) -> None:
        super().__init__(loop, "")
        self.returns = False
        self._frame, self._due, self._tell, self._reset = frame, due, tell, reset

    def opened(self) -> None:
        self.send(self._frame)

    def entered(self, payload: Mapping[str, Any], now: float) -> None:
        self.drop(reset=self._reset)
        self._over(GRANTED, now)

    def ended(self, payload: Mapping[str, Any] | None, now: float) -> None:
        if payload is None:
            self._over(LOST, now)
        else:
            self._over(payload["code"], now, payload.get("retry_after", 0.0))

    def give_up(self) -> None:
        if self.fd != AWAY:
            self.drop()
            self._over(UNANSWERED, time.monotonic())

    def _over(self, code: int, now: float, retry_after: float = 0.0) -> None:
        self._tell(Attempt(self._due, now - self._due, code, retry_after))


def log_in(
    plan: Logins, tell: Callable[[Attempt], object], may_open: Callable[[], bool] = lambda: True
) -> None:
    """Make the attempts of a plan.

    Args:
        plan: see `Logins`.
        tell: is told of each that is over.
        may_open: whether another may be made now; the time of what it puts off counts from when it was made.
    """
    with ClientLoop(plan.address, sources=plan.sources) as loop:
        origin, delayed, number = plan.begin or time.monotonic(), 0.0, 0
        while number < plan.count:
            due = origin + delayed + number / plan.per_second
            now = time.monotonic()
            if due > now or len(loop) >= plan.at_once:
                loop.turn(min(0.05, max(due - now, 0.001)))
                continue
            if number % OPENS_A_TURN == 0:
                loop.turn(0)
                while not may_open():
                    loop.turn(0.005)
                    delayed = max(delayed, time.monotonic() - origin - number / plan.per_second)
                due = origin + delayed + number / plan.per_second
            is_reset = plan.reset and number % 2 == 1
            _Login(loop, plan.frame(number), due, tell, reset=is_reset).connect()
            number += 1
        loop.run(PATIENCE_S, lambda: not len(loop))
        for client in loop.open_clients():
            if isinstance(client, _Login):
                client.give_up()


def logins(plan: Logins) -> list[Attempt]:
    """Make the attempts of a plan; return what came of each, in the order in which they ended."""
    ended: list[Attempt] = []
    log_in(plan, ended.append)
    return ended


class Habit(NamedTuple):
    """What a stranger sends: something immediately, and then the rest of it byte by byte."""

    at_once: bytes = b""
    drip: bytes = b""


@dataclass(frozen=True)
class Strangers:
    """Who comes and never logs in.

    Attributes:
        address: the server's.
        habits: of the strangers, by turns.
        count: how many come.
        per_second: how many of them in a second.
        seconds: for how long the last is watched.
        begin: monotonic seconds at which the first comes; 0.0: immediately.
        every_s: between two bytes of one that drips.
    """

    address: Address
    habits: Sequence[Habit]
    count: int
    per_second: float
    seconds: float
    begin: float = 0.0
    every_s: float = 1.0


class Stay(NamedTuple):
    """What became of a stranger.

    Attributes:
        lived_s: from its connect to the server's close; inf: it was there at the end.
        code: the reason that the server told, 0 without.
        sent: bytes.
    """

    lived_s: float
    code: int
    sent: int


class _Stranger(Client):
    is_member = hangs_up = False

    def __init__(
        self, loop: ClientLoop, habit: Habit, every_s: float, tell: Callable[[Stay], object]
    ) -> None:
        super().__init__(loop, "")
        self.returns = False
        self._habit, self._every_s, self._tell = habit, every_s, tell
        self._begun, self._sent = 0.0, 0

    def connect(self) -> None:
        self._begun = time.monotonic()
        super().connect()

    def opened(self) -> None:
        if self._habit.at_once:
            self.send(self._habit.at_once)
        self._sent = len(self._habit.at_once)
        self._drip_later(time.monotonic(), 0)

    def ended(self, payload: Mapping[str, Any] | None, now: float) -> None:
        self._tell(Stay(now - self._begun, payload["code"] if payload else 0, self._sent))

    def remain(self) -> None:
        self._tell(Stay(math.inf, 0, self._sent))

    def _drip_later(self, now: float, number: int) -> None:
        if number < len(self._habit.drip):
            due = now + self._every_s
            self.loop.at(due, partial(self._drip, due, number))

    def _drip(self, due: float, number: int) -> None:
        if self.fd != AWAY:
            self.send(self._habit.drip[number : number + 1])
            self._sent += 1
            self._drip_later(due, number + 1)


def strangers(plan: Strangers) -> list[Stay]:
    """Let them come; return what became of each. None is closed by us before the end."""
    stays: list[Stay] = []
    with ClientLoop(plan.address, sources=SOURCES) as loop:
        begin = plan.begin or time.monotonic()
        for number in range(plan.count):
            habit = plan.habits[number % len(plan.habits)]
            stranger = _Stranger(loop, habit, plan.every_s, stays.append)
            loop.at(begin + number / plan.per_second, stranger.connect)
        until = begin + plan.count / plan.per_second + plan.seconds
        loop.run(until - time.monotonic(), lambda: len(stays) == plan.count)
        for client in loop.open_clients():
            if isinstance(client, _Stranger):
                client.remain()
    return stays


class Flooded(NamedTuple):
    """What a flooder achieved: packets that left it, how often it was cut off with 311, and otherwise."""

    packets: int
    cut_off: int
    otherwise: int


class _Flooder(Client):
    """Sends as much as the connection takes; logs in anew when it ends, whatever it was told."""

    is_member = False

    def __init__(self, loop: ClientLoop, frame: bytes) -> None:
        super().__init__(loop, "flooder")
        self.returns = False
        self.cut_off = self.otherwise = self.pieces = 0
        self._piece = frame * max(1, PIECE_BYTES // len(frame))

    def entered(self, payload: Mapping[str, Any], now: float) -> None:
        self.flush()

    def flush(self) -> None:
        super().flush()
        if self.fd != AWAY and self.is_in and not self.is_sending:
            self.pieces += 1
            self.send_later(self._piece)

    def ended(self, payload: Mapping[str, Any] | None, now: float) -> None:
        is_told = payload is not None and payload["code"] == Code.RATE_LIMITED
        self.cut_off += is_told
        self.otherwise += not is_told
        self.connect()


def flood(address: Address, frame: bytes, begin: float, seconds: float) -> Flooded:
    """Send a frame again and again over one connection, as fast as it takes it."""
    with ClientLoop(address) as loop:
        flooder = _Flooder(loop, frame)
        loop.at(begin, flooder.connect)
        loop.run(begin + seconds - time.monotonic())
        pieces = flooder.pieces
    return Flooded(pieces * max(1, PIECE_BYTES // len(frame)), flooder.cut_off, flooder.otherwise)


class _Asker(Client):
    def __init__(self, loop: ClientLoop, uid: str, every_s: float, times: list[float]) -> None:
        super().__init__(loop, uid)
        self._every_s, self._times = every_s, times
        self._asked = 0.0

    def ask(self, due: float) -> None:
        self._asked = time.monotonic()
        self.send(ASKING)
        self.loop.at(due + self._every_s, partial(self.ask, due + self._every_s))

    def heard(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        if kind == Kind.OK:
            self._times.append(now - self._asked)


def ask(
    address: Address, name: str, clients: int, every_s: float, begin: float, seconds: float
) -> list[float]:
    """Let clients ask, each at its own moments; return the seconds from sending to the answer."""
    times: list[float] = []
    with ClientLoop(address) as loop:
        askers = [_Asker(loop, f"{name}-{number}", every_s, times) for number in range(clients)]
        loop.bring(askers)
        loop.run(begin - time.monotonic(), lambda: loop.online() == clients)
        now = time.monotonic()
        for number, asker in enumerate(askers):
            due = max(begin, now) + number * every_s / clients
            loop.at(due, partial(asker.ask, due))
        loop.run(begin + seconds - time.monotonic())
        if loop.endings:
            raise RuntimeError(f"some of those who ask lost their connection: {dict(loop.endings)}")
    return times
