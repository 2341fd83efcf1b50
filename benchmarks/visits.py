"""``python -m benchmarks.visits``: clients that log in, stay for half a second and log out.

The load is open-loop, made in a process of its own: so many visits per second, each when it is due. A visit
is connect, login, its answer, logout 0.5 s later, the answer to that, close. Compared in the same rounds:
`presence` with one worker and with several, `floor` (floor.c: accept, recv, send, close), and `mosquitto`
(CONNECT, DISCONNECT; it writes no event anywhere); with ``--also NAME=PYTHON`` the server that another
Python has installed, such as an earlier version.

CPU is user and kernel time of all threads of the server's processes; that of its Redis stands beside it.
Login times are from before the connect until the answer. With ``--others N``, N more connections each ask for
an answer every 3 s meanwhile, and round trips of keepalives are measured; CPU is then of both together.
Needs Linux and the ``loadtest`` and ``embedded`` extras.
"""

import argparse
import contextlib
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import psutil

from benchmarks import plots
from benchmarks.contenders import OWN, Contender, contenders, installed, running, with_workers
from benchmarks.load_generator import (
    ANSWERED,
    COMMAND_TIMEOUT_S,
    CORE_LIMIT,
    DIALECTS,
    LATE_S,
    Dialect,
    GeneratorReport,
    KeepaliveGenerator,
)
from benchmarks.prober import ALWAYS, Probed, probing
from benchmarks.progress import Bar
from benchmarks.results import median
from loadtest import usage
from loadtest.arguments import above_0, from_0, from_1
from loadtest.outcome import markdown, percentile, write_results
from loadtest.processes import WorkerProcess, exit_on_sigterm
from presence.loadtest.server_address import raise_file_limit, source_addresses

RATES = (50.0, 200.0, 1000.0, 3000.0)  # visits per second
STAY_S = 0.5  # from the answer to the login until the logout
WARM_UP_S = 2.0
START_S = 4.0  # of a server, a guess for the progress bar
LAST_ANSWERS_TIMEOUT_S = 2.0
OTHERS_INTERVAL_S = 3.0  # of the keepalives of other connections
PROBE_SETTLE_S = 3.5
VISITS_PER_SOURCE = 4_000  # addresses in turn, because the kernel's search for a port gets slow
SOURCES = 250
BIND_ADDRESS_NO_PORT = 24  # linux/in.h
MISSED_LIMIT = 0.01
MAX_UNANSWERED = 5_000  # logins; more visits wait, for descriptors are limited
LABEL_DISTANCE = 1.15  # of two lines that have labels of their own
PICTURES = Path(__file__).with_name("pictures")


@dataclass(frozen=True)
class VisitReport:
    """What the generator saw of one load."""

    visits: int  # begun
    finished: int  # logged in, out and closed
    login_ms: list[float]  # of each login
    core_share: float  # of the generator, of a core
    late_max_s: float  # how much later than due a visit began, at most


class VisitGenerator:
    """Clients that come and go.

    Args:
        first: number of the first visitor.
        users: how many there are, who come in turn; 0: each comes once.
        prefix: of their uids.
    """

    def __init__(
        self,
        address: tuple[str, int],
        dialect: Dialect,
        first: int = 0,
        users: int = 0,
        prefix: str = "visitor-",
    ) -> None:
        self._address = address
        self._prefix = prefix
        self._dialect = dialect
        self._users = users or sys.maxsize
        self._sources = [*islice(source_addresses(address[0], SOURCES), SOURCES)]
        self._number = first  # of the next visitor
        self._epoll = select.epoll()
        # By descriptor, until the login is answered: the socket, when it began, and the answer so far
        self._begun: dict[int, tuple[socket.socket, float, bytes]] = {}
        self._leaving: dict[int, socket.socket] = {}  # until the logout is answered
        self._staying: deque[tuple[float, socket.socket]] = deque()  # by the time of the logout
        self._lost: set[int] = set()  # of these, the descriptors of those that the server has closed
        self._login_ms: list[float] = []
        self._finished = 0

    def play(self, rate: float, seconds: float) -> VisitReport:
        """Begin `rate` visits per second for some seconds; return when all have ended."""
        self._login_ms, self._finished = [], 0
        total, late_max, visits = round(rate * seconds), 0.0, 0
        cpu, started = time.process_time(), time.monotonic()
        busy_until = started + seconds
        while self._begun or self._leaving or self._staying or visits < total:
            now = time.monotonic()
            while visits < total and started + visits / rate <= now and len(self._begun) < MAX_UNANSWERED:
                late_max = max(late_max, now - started - visits / rate)
                self._begin()
                visits += 1
            while self._staying and self._staying[0][0] <= now:
                self._log_out(self._staying.popleft()[1])
            due = [started + visits / rate] if visits < total and len(self._begun) < MAX_UNANSWERED else []
            due += [self._staying[0][0]] if self._staying else []
            self._handle_answers(max(0.0, min(due, default=now + 0.05) - time.monotonic()))
            if now > busy_until + STAY_S + LAST_ANSWERS_TIMEOUT_S:
                break
        elapsed = time.monotonic() - started
        return VisitReport(
            visits, self._finished, self._login_ms, (time.process_time() - cpu) / elapsed, late_max
        )

    def _begin(self) -> None:
        source = self._sources[self._number // VISITS_PER_SOURCE % SOURCES]
        self._number += 1
        sock = socket.socket()
        begun = time.monotonic()
        try:
            if source is not None:
                sock.setsockopt(socket.IPPROTO_IP, BIND_ADDRESS_NO_PORT, 1)
                sock.bind((source, 0))
            sock.connect(self._address)
            sock.setblocking(False)
            sock.send(self._dialect.login(f"{self._prefix}{self._number % self._users}"))
        except OSError:
            sock.close()
            raise
        self._begun[sock.fileno()] = (sock, begun, b"")
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _log_out(self, sock: socket.socket) -> None:
        fd = sock.fileno()
        try:
            if fd in self._lost:
                raise ConnectionResetError
            sock.send(self._dialect.logout)
        except OSError:  # it was not the visitor who ended this visit
            self._lost.discard(fd)
            sock.close()
            return
        if self._dialect.is_logout_answered is not None:
            self._leaving[fd] = sock
            return
        sock.close()
        self._finished += 1

    def _handle_answers(self, wait_s: float) -> None:
        for fd, _ in self._epoll.poll(wait_s, 256):
            if fd in self._leaving:
                self._handle_logout_answer(self._leaving.pop(fd))
            elif fd in self._begun:
                self._handle_login_answer(fd)
            else:
                self._epoll.unregister(fd)
                self._lost.add(fd)

    def _handle_logout_answer(self, sock: socket.socket) -> None:
        is_answered = self._dialect.is_logout_answered
        with contextlib.suppress(OSError):  # also ConnectionRefusedError: it is another answer
            answer = sock.recv(4096)  # closing with unread input would send a reset
            self._finished += is_answered is None or is_answered(answer)
        sock.close()

    def _handle_login_answer(self, fd: int) -> None:
        sock, begun, received = self._begun[fd]
        try:
            if not (more := sock.recv(4096)):
                raise ConnectionResetError
            if not self._dialect.is_login_answered(answer := received + more):
                self._begun[fd] = (sock, begun, answer)
                return
        except OSError:  # refused, or closed
            del self._begun[fd]
            sock.close()
            return
        now = time.monotonic()
        del self._begun[fd]
        self._login_ms.append((now - begun) * 1000)
        self._staying.append((now + STAY_S, sock))


def play(address: tuple[str, int], dialect: str, first: int, rate: float, seconds: float) -> VisitReport:
    """Let visitors come and go; `first` is the number of the first."""
    return VisitGenerator(address, DIALECTS[dialect], first).play(rate, seconds)


@dataclass(frozen=True)
class Visits:
    """One server under one load in one round."""

    server: str
    round: int
    rate: float  # visits per second
    cpu_us: float  # of the server's processor time per visit
    redis_us: float  # of its Redis' processor time per visit; 0 without one
    wakes: float  # how often threads of the server went to sleep, per visit
    login_p50_ms: float
    login_p99_ms: float
    keepalive_p99_ms: float  # of other connections; NaN without any
    complaints: list[str]  # why it is not valid; empty when it is


@dataclass(frozen=True)
class VisitsPlan:
    """What each server goes through in a round."""

    rates: tuple[float, ...]
    seconds: float
    others: int

    def planned_s(self) -> float:
        return START_S + len(self.rates) * (self.seconds + WARM_UP_S + 2 * STAY_S)


def measure(contender: Contender, number: int, plan: VisitsPlan, bar: Bar) -> list[Visits]:
    """Measure one server from start to end."""
    bar.begin(f"round {number}: {contender.name}", plan.planned_s())
    found, first = [], 0
    with (
        running(contender) as server,
        WorkerProcess() as generator,
        WorkerProcess() as others,
    ):
        address = server.host, server.port
        if plan.others:
            others.submit(connect_others, address, contender.dialect, plan.others).result(COMMAND_TIMEOUT_S)
        time.sleep(START_S / 2)  # until the start is over
        for rate in plan.rates:
            for seconds, is_measured in ((WARM_UP_S, False), (plan.seconds, True)):
                pids = usage.server_processes(server.pid)
                redis = [each.pid for each in psutil.Process(server.pid).children() if each.pid not in pids]
                before = _spent(pids), _spent(redis), sum(map(usage.count_wakes, pids))
                load = generator.submit(play, address, contender.dialect, first, rate, seconds)
                wrong: list[str] = []
                with _probing(address, seconds, wanted=bool(plan.others) and is_measured) as probed:
                    if plan.others:
                        keepalives = others.submit(keep_others, plan.others / OTHERS_INTERVAL_S, seconds)
                        wrong += keepalives.result(seconds + COMMAND_TIMEOUT_S).complaints(ANSWERED)
                    report = _await(load, seconds + COMMAND_TIMEOUT_S, bar)
                first += report.visits
            wrong += [f"a process of the server ended: {pid}" for pid in (*pids, *redis) if is_gone(pid)]
            after = _spent(pids), _spent(redis), sum(map(usage.count_wakes, pids))
            cpu, redis_cpu, wakes = ((b - a) / report.visits for a, b in zip(before, after, strict=True))
            found.append(
                Visits(
                    contender.name,
                    number,
                    rate,
                    cpu_us=cpu * 1e6,
                    redis_us=redis_cpu * 1e6,
                    wakes=wakes,
                    login_p50_ms=percentile(report.login_ms, 0.5),
                    login_p99_ms=percentile(report.login_ms, 0.99),
                    keepalive_p99_ms=percentile(probed.trips_ms[ALWAYS], 0.99),
                    complaints=[*complaints(report), *wrong, *probed.complaints()],
                )
            )
    cells = ", ".join(
        f"{each.cpu_us:.0f} µs{'!' * bool(each.complaints)} ({each.rate:g}/s)" for each in found
    )
    bar.print_line(f"round {number}: {contender.name}, µs: {cells}")
    return found


_others: list[KeepaliveGenerator] = []  # of the process that has the other connections


def connect_others(address: tuple[str, int], dialect: str, connections: int) -> None:
    """Log in other connections, in a process of their own."""
    _others.append(KeepaliveGenerator(address, DIALECTS[dialect], 0.0, "other"))
    _others[0].connect(connections)


def keep_others(rate: float, seconds: float) -> GeneratorReport:
    """Let the other connections send keepalives that ask for an answer."""
    return _others[0].send_keepalives(ANSWERED, rate, seconds)


def _await(load: "Future[VisitReport]", within_s: float, bar: Bar) -> VisitReport:
    """Return the report; raises TimeoutError if the generator's process does not answer."""
    give_up_at = time.monotonic() + within_s
    while not load.done() and time.monotonic() < give_up_at:
        time.sleep(0.1)
        bar.tick()
    return load.result(0)


def _probing(
    address: tuple[str, int], seconds: float, *, wanted: bool
) -> contextlib.AbstractContextManager[Probed]:
    """Measure round trips of keepalives meanwhile; without any if none are wanted."""
    if not wanted:
        return contextlib.nullcontext(Probed({ALWAYS: []}))
    settle_s = min(PROBE_SETTLE_S, seconds / 2)
    return probing(*address, settle_s, seconds - settle_s)


def is_gone(pid: int) -> bool:
    """Whether a process has ended: what it had spent is lost."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _spent(pids: Iterable[int]) -> float:
    return sum(usage.cpu_seconds_by_pid(pids).values())


def complaints(report: VisitReport) -> list[str]:
    """Return why this measured something else than the server; empty if it did not."""
    found = []
    if report.core_share > CORE_LIMIT:
        found.append(f"the generator used {report.core_share:.0%} of a core")
    if report.late_max_s > LATE_S:
        found.append(f"the generator was late, by up to {report.late_max_s * 1000:.0f} ms")
    if report.finished < report.visits * (1 - MISSED_LIMIT):
        found.append(f"{report.visits - report.finished:,} visits did not end")
    return found


def report(found: Sequence[Visits], servers: Sequence[Contender]) -> str:
    """Return a table for each rate; medians over the rounds."""
    head = "server | µs of CPU a visit | ÷ mosquitto | its Redis | wakes | login p50 ms | p99 | keepalive p99"
    parts = [*(f"- {each.name}: {each.says}" for each in servers), ""]
    for rate in dict.fromkeys(each.rate for each in found):
        peer = _median(found, "mosquitto", rate, "cpu_us")
        body = [
            [
                each.name,
                f"{(cpu := _median(found, each.name, rate, 'cpu_us')):.0f}",
                f"{cpu / peer:.1f}",
                *(
                    f"{_median(found, each.name, rate, name):.{digits}f}"
                    for name, digits in (
                        *(("redis_us", 0), ("wakes", 1), ("login_p50_ms", 1)),
                        *(("login_p99_ms", 1), ("keepalive_p99_ms", 1)),
                    )
                ),
            ]
            for each in servers
        ]
        parts += [f"## {rate:g} visits per second", "", markdown(head, body), ""]
    return "\n".join(parts)


def _median(found: Iterable[Visits], server: str, rate: float, name: str) -> float:
    return median(getattr(each, name) for each in found if (each.server, each.rate) == (server, rate))


def draw(found: Sequence[Visits], servers: Sequence[Contender], folder: Path) -> None:
    """Draw cost against rate: ``visits.png``."""
    rates = sorted({each.rate for each in found})
    drawing, (axes,) = plots.figure(1, 1, 7, 3.4, "µs of CPU for each visit (less is better)")
    labels: list[tuple[float, str]] = []
    for each in sorted(servers, key=lambda each: _median(found, each.name, rates[0], "cpu_us")):
        colour = plots.OWN_COLOUR if each.name.startswith(OWN) else plots.PEER_COLOUR
        values = [_median(found, each.name, rate, "cpu_us") for rate in rates]
        axes.loglog(rates, values, "o-", color=colour)
        if labels and values[0] < LABEL_DISTANCE * labels[-1][0]:
            labels[-1] = (labels[-1][0], f"{labels[-1][1]}, {each.name}")
        else:
            labels.append((values[0], each.name))
    for value, text in labels:
        axes.annotate(f"{text}  ", (rates[0], value), color=plots.INK, fontsize=8, ha="right", va="center")
    for pick, ticks in ((axes.set_xticks, rates), (axes.set_yticks, (50, 100, 200, 500, 1000, 2000))):
        pick(ticks, [f"{tick:g}" for tick in ticks])
        pick([], minor=True)
    axes.set_xlabel("visits per second", color=plots.INK, fontsize=8)
    axes.margins(x=0.25)
    plots.save(drawing, folder / "visits.png")


def choose_servers(names: str, workers: int, also: Sequence[str]) -> list[Contender]:
    """Return the servers to measure; raises SystemExit if a name is unknown, or none can be measured here."""
    known = contenders(512)
    every = [known[OWN], with_workers(known[OWN], workers), known["floor"], known["mosquitto"]]
    for name, equals, python in (each.partition("=") for each in also):
        if not (name and equals and python):
            raise SystemExit(f"--also {name}{equals}{python}: give NAME=PYTHON")
        other = installed(name, python)
        every += [other, with_workers(other, workers)]
    if unknown := sorted({*names.split(",")} - {each.name for each in every}) if names else []:
        known_names = ", ".join(each.name for each in every)
        raise SystemExit(f"no such server: {', '.join(unknown)}; there are {known_names}")
    chosen = [each for each in every if not names or each.name in names.split(",")]
    for each in chosen:
        if why := each.missing():
            print(f"{each.name} is skipped: {why}", file=sys.stderr)
    if not (found := [each for each in chosen if not each.missing()]):
        raise SystemExit("none of these servers can be measured here")
    return found


def _rates(text: str) -> tuple[float, ...]:
    return tuple(map(above_0, text.split(",")))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.visits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rates", type=_rates, default=RATES, help="visits per second (50,200,1000,3000)")
    add("--seconds", type=above_0, default=8.0, help="of measuring, a rate and round (8)")
    add("--rounds", type=from_1, default=3)
    add("--workers", type=from_1, default=6, help="of the server with several (6)")
    add("--servers", default="", help="comma-separated names (all)")
    add("--also", action="append", default=[], metavar="NAME=PYTHON", help="another installation")
    add("--others", type=from_0, default=0, help="further connections that send keepalives (0)")
    add("--out", type=Path, default=Path("bench-results"), help="folder (bench-results)")
    add("--pictures", action="store_true", help=f"write the plot into {PICTURES.name}/ too, without --also")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    usage.require_linux()
    raise_file_limit()
    given = parse(words)
    plan = VisitsPlan(given.rates, given.seconds, given.others)
    servers = choose_servers(given.servers, given.workers, given.also)
    found: list[Visits] = []
    with Bar(given.rounds * len(servers) * plan.planned_s()) as bar:
        for number in range(1, given.rounds + 1):
            for each in servers if number % 2 else reversed(servers):
                found += measure(each, number, plan, bar)
    text = report(found, servers)
    write_results(given.out, "visits", text, {"visits": [asdict(each) for each in found]})
    draw(found, servers, given.out)
    if given.pictures:
        draw(found, choose_servers(given.servers, given.workers, ()), PICTURES)
    print(text)
    invalid = [f"{each.server}, {each.rate:g}/s: {why}" for each in found for why in each.complaints]
    for line in invalid:
        print(f"not valid: {line}", file=sys.stderr)
    return 1 if invalid else 0


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
