"""An open-loop load of keepalives: so many connections, so many packets a second, whatever the server does.

It is made in a process of its own. Each packet is sent when it is due, as devices that know nothing of each
other would do: a server that waits for events is then woken for nearly every one. With `burst_s` above 0
packets are sent together once in so long, which spares such a server wakes.

How a client of each kind of server logs in, sends keepalives and is answered is data, a `Dialect`. MQTT is
version 3.1.1 (CONNECT, PINGREQ); NATS is its text protocol (INFO, CONNECT, PING).
"""

import contextlib
import gc
import multiprocessing
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.progress import Bar
from loadtest.websocket_client import BINARY, BINARY_REQUEST, REQUEST, TEXT, behind_answer, message, messages
from presence import protocol

MIN_SLEEP_S = 2e-5  # with the kernel's own slack of 50 µs the generator wakes some 10,000 times a second
LOGINS_PER_TURN = 100
LOGIN_TIMEOUT_S = 20.0
LAST_ANSWERS_TIMEOUT_S = 1.0  # time for the answers to the last keepalives, at most
LATE_S = 0.1  # a generator that stood still for longer has sent a burst and not its load
CORE_LIMIT = 0.7  # of a core: beyond, the generator and not the server would be measured
MISSED_LIMIT = 0.01  # of the packets, or of their answers
CONNECTS_PER_S = 4_000.0  # a guess, for the progress bar only
COMMAND_TIMEOUT_S = 60.0  # beyond the time that a command takes by design
SETTLE_KEEPALIVES = 13  # of each connection, until a server that adapts to what clients send has adapted
SETTLE_RATE = 15_000.0
ANSWERED = "answered"
UNANSWERED = "unanswered"

_MQTT_KEEP_ALIVE_S = 60
_MQTT_CLEAN_SESSION = 0x02
_NATS_LOGIN = b'CONNECT {"verbose":false,"pedantic":false,"lang":"bench","version":"1"}\r\nPING\r\n'


@dataclass(frozen=True)
class Dialect:
    """What goes over a connection."""

    login: Callable[[str], bytes]  # what client `uid` sends at first
    # What the server's first answer ends with; whatever came before it is passed over
    is_login_answered: Callable[[bytes], bool]
    keepalives: dict[str, bytes]  # the packet for each kind of keepalive that there is
    answer: bytes  # what the server sends for each answered keepalive
    logout: bytes = b""  # what a client sends at last; "" if nothing
    # As `is_login_answered`; None: the server does not answer it
    is_logout_answered: Callable[[bytes], bool] | None = None


def _presence_login(uid: str) -> bytes:
    return protocol.encode(protocol.login(uid, id=1))


def _presence_ok(data: bytes) -> bool:
    end = protocol.frame_end(data, 0, protocol.FRAME_LIMIT_BYTES)
    if not end:
        return False
    answer = protocol.decode(data[protocol.HEADER_BYTES : end])
    if answer.kind != protocol.Kind.OK:
        raise ConnectionRefusedError(f"refused: {answer}")
    return True


def _mqtt_login(uid: str) -> bytes:
    name = uid.encode()
    head = b"\x00\x04MQTT\x04" + bytes([_MQTT_CLEAN_SESSION]) + _MQTT_KEEP_ALIVE_S.to_bytes(2, "big")
    body = head + len(name).to_bytes(2, "big") + name
    if len(body) > 127:
        raise ValueError("the length takes one byte here, so the name must be short")
    return b"\x10" + bytes([len(body)]) + body


def _mqtt_welcome(data: bytes) -> bool:
    if len(data) < 4:
        return False
    if data != b"\x20\x02\x00\x00":
        raise ConnectionRefusedError(f"CONNACK {data!r}")
    return True


def _nats_login(_uid: str) -> bytes:
    return _NATS_LOGIN


def _nats_welcome(data: bytes) -> bool:
    if b"-ERR" in data:
        raise ConnectionRefusedError(repr(data))
    return data.endswith(b"PONG\r\n")


_ACKNOWLEDGED = protocol.encode(protocol.keepalive(7))

PRESENCE = Dialect(
    _presence_login,
    _presence_ok,
    {UNANSWERED: protocol.KEEPALIVE, ANSWERED: _ACKNOWLEDGED},
    protocol.keepalive_answer(_ACKNOWLEDGED),
    logout=protocol.encode(protocol.logout(id=2)),
    is_logout_answered=_presence_ok,
)
MQTT = Dialect(_mqtt_login, _mqtt_welcome, {ANSWERED: b"\xc0\x00"}, b"\xd0\x00", logout=b"\xe0\x00")
NATS = Dialect(_nats_login, _nats_welcome, {ANSWERED: b"PING\r\n"}, b"PONG\r\n")


def _answers(data: bytes) -> bytes:
    """Return what is in the messages behind the answer to the request, b"" while they are incomplete."""
    return messages(behind_answer(data) or b"")[0]


def _websocket_login(uid: str) -> bytes:
    return BINARY_REQUEST + message(BINARY, _presence_login(uid))


def _json_login(uid: str) -> bytes:
    return REQUEST + b"\r\n" + message(TEXT, f'[1,1,{{"uid":"{uid}"}}]'.encode())


WEBSOCKET = Dialect(
    _websocket_login,
    lambda data: _presence_ok(_answers(data)),
    {kind: message(BINARY, frame) for kind, frame in PRESENCE.keepalives.items()},
    PRESENCE.answer,  # a message may have several
    logout=message(BINARY, PRESENCE.logout),
    is_logout_answered=lambda data: _presence_ok(messages(data)[0]),
)
JSON = Dialect(
    _json_login,
    lambda data: _answers(data).startswith(b"[64,1,"),
    {UNANSWERED: message(TEXT, b"[3]"), ANSWERED: message(TEXT, b"[3,7]")},
    bytes([TEXT, len(b"[64,7]")]) + b"[64,7]",
)

DIALECTS = {"presence": PRESENCE, "mqtt": MQTT, "nats": NATS, "websocket": WEBSOCKET, "json": JSON}


@dataclass(frozen=True)
class GeneratorReport:
    """The result of one load of keepalives."""

    wanted: float  # packets a second, as ordered
    # Packets, and those that were answered; 0 when none asked for it
    sent: int
    answers: int
    rate: float  # packets a second, as sent
    core_share: float  # the generator's own processor time, of a core
    late_max_s: float  # how much later than due a packet was sent, at most

    def complaints(self, kind: str) -> list[str]:
        """Return why this measured something else than the server; empty if it did not."""
        found = []
        if self.core_share > CORE_LIMIT:
            found.append(f"the generator used {self.core_share:.0%} of a core")
        if self.late_max_s > LATE_S or self.rate < self.wanted * (1 - MISSED_LIMIT):
            found.append(f"the generator was late, by up to {self.late_max_s * 1000:.0f} ms")
        if kind == ANSWERED and self.answers < self.sent * (1 - MISSED_LIMIT):
            found.append(f"{self.sent - self.answers:,} keepalives stayed unanswered")
        return found


class KeepaliveGenerator:
    """Logged-in connections, and keepalives over them in turn."""

    def __init__(self, address: tuple[str, int], dialect: Dialect, burst_s: float, prefix: str) -> None:
        self._address = address
        self._prefix = prefix
        self._dialect = dialect
        self._pause_s = max(burst_s, MIN_SLEEP_S)
        self._next = 0  # whose turn it is
        self._answers = 0
        self._epoll = select.epoll()
        self._sockets: list[socket.socket] = []

    def connect(self, connections: int) -> None:
        """Log in until there are that many connections."""
        for start in range(len(self._sockets), connections, LOGINS_PER_TURN):
            numbers = range(start, min(start + LOGINS_PER_TURN, connections))
            new = [self._log_in(f"{self._prefix}-{number}") for number in numbers]
            for sock in new:
                self._await_login_answer(sock)
                sock.setblocking(False)
                self._epoll.register(sock.fileno(), select.EPOLLIN)
            self._sockets += new
        gc.collect()
        gc.freeze()  # a collection would scan all of them, in the middle of a second's load

    def _log_in(self, uid: str) -> socket.socket:
        sock = socket.create_connection(self._address, timeout=LOGIN_TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(self._dialect.login(uid))
        return sock

    def time_logins(self, number: int, rate: float) -> list[float]:
        """Log in one after the other, `rate` per second, and close; return how long each took, in seconds."""
        taken = []
        for each in range(number):
            begun = time.monotonic()
            with self._log_in(f"{self._prefix}-timed-{each}") as sock:
                self._await_login_answer(sock)
                taken.append(time.monotonic() - begun)
            time.sleep(max(0.0, 1 / rate - (time.monotonic() - begun)))
        return taken

    def _await_login_answer(self, sock: socket.socket) -> None:
        data = b""
        while not self._dialect.is_login_answered(data):
            if not (more := sock.recv(4096)):
                raise ConnectionRefusedError("closed before the login was answered")
            data += more

    def send_keepalives(self, kind: str, rate: float, seconds: float) -> GeneratorReport:
        """Send `rate` packets per second for some seconds, evenly over all connections."""
        write, frame = os.write, self._dialect.keepalives[kind]
        fds = [sock.fileno() for sock in self._sockets]
        first, asks = self._next, kind == ANSWERED
        self._answers = 0
        sent, total = 0, round(rate * seconds)
        late_max = 0.0
        cpu, started = time.process_time(), time.monotonic()
        while sent < total:
            now = time.monotonic()
            due = min(total, int((now - started) * rate) + 1)
            late_max = max(late_max, now - started - sent / rate)
            for number in range(first + sent, first + due):
                write(fds[number % len(fds)], frame)
            sent = due
            if asks:
                self._read_answers()
            time.sleep(max(0.0, self._pause_s - (time.monotonic() - now)))
        elapsed, cpu = time.monotonic() - started, time.process_time() - cpu
        last = time.monotonic() + LAST_ANSWERS_TIMEOUT_S
        while asks and self._answers < sent and time.monotonic() < last:
            time.sleep(0.01)
            self._read_answers()
        self._next = (first + sent) % len(fds)
        return GeneratorReport(
            rate, sent, self._answers if asks else 0, sent / elapsed, cpu / elapsed, late_max
        )

    def _read_answers(self) -> None:
        answer = self._dialect.answer
        while events := self._epoll.poll(0, 1024):
            for fd, _ in events:
                data = os.read(fd, 4096)
                if not data:
                    raise SystemExit("the server has closed a connection")
                self._answers += data.count(answer)


def _serve(pipe: Connection, address: tuple[str, int], dialect: str, burst_s: float, prefix: str) -> None:
    """Run commands until the pipe ends: the generator's process."""
    generator = KeepaliveGenerator(address, DIALECTS[dialect], burst_s, prefix)
    with contextlib.suppress(EOFError):
        while True:
            order, given = pipe.recv()
            pipe.send(getattr(generator, order)(*given))


class LoadGenerator:
    """The generator's process, from the side of the commands.

    Args:
        dialect: a key of `DIALECTS`.
        burst_ms: how long packets are held back, to be sent together.
        prefix: of its users' uids.
    """

    def __init__(
        self, address: tuple[str, int], dialect: str, burst_ms: float, bar: Bar, *, prefix: str = "user"
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, address, dialect, burst_ms / 1000, prefix)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._bar = bar

    def connect(self, connections: int) -> None:
        """Log in until there are that many connections."""
        self._call(connections / CONNECTS_PER_S, "connect", connections)

    def send_keepalives(self, kind: str, rate: float, seconds: float) -> GeneratorReport:
        report: GeneratorReport = self._call(seconds, "send_keepalives", kind, rate, seconds)
        return report

    def time_logins(self, number: int, rate: float) -> list[float]:
        """See `KeepaliveGenerator.time_logins`."""
        taken: list[float] = self._call(number / rate, "time_logins", number, rate)
        return taken

    def settle(self, kind: str, connections: int, rate: float = SETTLE_RATE) -> None:
        """Let every client send enough keepalives for the server to adapt."""
        self.send_keepalives(kind, rate, settle_s(connections, rate))

    def _call(self, planned_s: float, order: str, *given: Any) -> Any:
        self._pipe.send((order, given))
        deadline = time.monotonic() + planned_s + COMMAND_TIMEOUT_S
        while not self._pipe.poll(0.2):
            self._bar.tick()
            if time.monotonic() > deadline:
                raise SystemExit(f"the generator did not finish: {order}")
        try:
            return self._pipe.recv()
        except EOFError:
            raise SystemExit(f"the generator failed at: {order}") from None

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def settle_s(connections: int, rate: float = SETTLE_RATE) -> float:
    """Return how long it takes until every client has sent what settles a server."""
    return SETTLE_KEEPALIVES * connections / rate
