"""Clients of a real server that watch rooms: how late the pushes of changes are, and whether views are right.

A server with several workers, which run the projector beside the clients, and a Redis of its own. Clients
enter rooms and leave them, log out and in again, at several rates; see `benchmarks.rooms.visitors`. A lag is
from right before a client sends a change until a watcher has read the push that shows it, so delays of the
load are in it. Rooms of ten are pushed with the names of members, at most every 0.1 s, and the lobby as its
count, at most once a second: there a change waits up to a second by design.

At each rate the lobby grows for half of the time, and shrinks for the other half. After each half all views
are compared with what clients did, and in the end the members in Redis are, too.

Tests: `tests/benchmarks/test_room_pushes.py`, `tests/system/benchmarks/test_rooms.py`.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.loop_processes import LoopProcesses, shares_of, sources_of
from benchmarks.rooms.costs import LOBBY, PREFIX
from benchmarks.rooms.push_lags import PushLags, count_deliveries, member_deliveries
from benchmarks.rooms.visitors import VisitorLog, VisitorLoop, VisitorStatus
from loadtest import usage
from loadtest.outcome import markdown, percentile, print_progress
from loadtest.room_members import stored_members
from loadtest.servers import LocalRedis, PresenceServer, wait_for
from presence.loadtest.server_address import raise_file_limit
from presence.store.keys import Keys
from presence.watching.room_schedule import LARGE_PAUSE_S

CLIENTS_PER_PROCESS: Final = 9_000
LISTED_MEMBERS: Final = 50  # so the lobby is a count
LOGINS_PER_S: Final = 500.0
WATCHES_PER_S: Final = 500.0
KEEPALIVE_S: Final = 10.0
TIMEOUT_S: Final = 60.0  # beyond the time that a rate takes
SETTLE_TIMEOUT_S: Final = 20.0  # until all views are right, after the last change
POLL_S: Final = 0.25
EXAMPLES: Final = 3


@dataclass(frozen=True)
class LagFigures:
    """PushLags of changes to watchers; times are from the client's send to the push, in ms."""

    deliveries: int
    missing: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, lags_s: Sequence[float], missing: int = 0) -> "LagFigures":
        rising = sorted(lags_s)
        p50, p99, most = (percentile(rising, share) * 1000 for share in (0.5, 0.99, 1.0))
        return cls(len(rising), missing, p50, p99, most)


@dataclass
class PushFigures:
    """What came of one rate.

    Attributes:
        rate: as wanted.
        changes_per_s: that clients have sent; one may be of two rooms.
        games: of rooms of ten.
        causes: of these, by what the client did.
        late_ms: most that the load was late with what it was to send.
        server_cores, redis_cores, load_cores: processor time, of a core.
    """

    rate: float
    changes_per_s: float
    games: LagFigures
    causes: dict[str, LagFigures]
    lobby: LagFigures
    late_ms: float
    server_cores: float
    redis_cores: float
    load_cores: float
    broken: list[str] = field(default_factory=list)

    @property
    def lobby_beyond_ms(self) -> float:
        """What p99 in the lobby is beyond the pause between two pushes."""
        return max(0.0, self.lobby.p99_ms - LARGE_PAUSE_S * 1000)


class VisitorCrowd(LoopProcesses):
    """The clients of all processes."""

    def __init__(self, address: tuple[str, int], clients: int) -> None:
        shares = shares_of(clients, math.ceil(clients / CLIENTS_PER_PROCESS))
        sources = sources_of(address[0], [*map(len, shares)])
        super().__init__(
            VisitorLoop,
            [(address, share, clients, sources[seed], seed) for seed, share in enumerate(shares)],
        )
        self.watchers: Counter[str] = sum(self.call_all("watchers"), Counter())

    def status(self) -> VisitorStatus:
        found: list[VisitorStatus] = self.call_all("report_status")
        return VisitorStatus(
            sum(each.arriving for each in found),
            sum(each.watching for each in found),
            sum(each.cpu_s for each in found),
            max(each.late_max_s for each in found),
            sum((each.broken for each in found), Counter()),
        )

    def members(self) -> dict[str, set[str]]:
        """Return who is in which room, as far as clients have told the server."""
        found: dict[str, set[str]] = {}
        for some in self.call_all("present_members"):
            for room, members in some.items():
                found.setdefault(room, set()).update(members)
        return found

    def take_log(self) -> VisitorLog:
        found = VisitorLog()
        for log in self.call_all("take_log"):
            found.steps += log.steps
            found.seen += log.seen
            found.counts += log.counts
        return found


class PushRun:
    """Clients on a running server: each method is a phase."""

    def __init__(self, server: PresenceServer, redis: LocalRedis, crowd: VisitorCrowd) -> None:
        self._server, self._redis, self._crowd = server, redis, crowd
        self._pids = usage.server_processes(server.process.pid)

    def log_in(self, clients: int) -> None:
        share = self._crowd.size
        self._crowd.call_all("log_in_all", per_second=LOGINS_PER_S / share, keepalive_s=KEEPALIVE_S)
        self._wait("log in", clients / LOGINS_PER_S, lambda: not self._crowd.status().arriving)
        self._crowd.call_all("watch_all", per_second=WATCHES_PER_S / share)
        watching = sum(each for room, each in self._crowd.watchers.items() if room != LOBBY)
        self._wait("watch", clients / WATCHES_PER_S, lambda: self._crowd.status().watching >= watching)
        if broken := self._settle():
            raise RuntimeError(f"views are wrong before the first change: {broken}")

    def play(self, rate: float, seconds: float) -> PushFigures:
        """Let clients change at a rate, and judge what watchers were shown."""
        games, lobby, broken, changes = PushLags(), PushLags(), list[str](), 0
        late_s, spent = 0.0, [0.0, 0.0, 0.0]
        for lobby_grows in (True, False):
            before = len(self._crowd.members().get(LOBBY, ()))
            self._crowd.call_all("begin_phase")
            begun = self._spent()
            self._crowd.call_all("start_changes", per_second=rate / self._crowd.size, lobby_grows=lobby_grows)
            time.sleep(seconds / 2)
            self._crowd.call_all("stop_changes")
            spent = [total + now - then for total, now, then in zip(spent, self._spent(), begun, strict=True)]
            late_s = max(late_s, self._crowd.status().late_max_s)
            broken += self._settle()
            log = self._crowd.take_log()
            changes += len({(step.uid, step.at) for step in log.steps})
            in_games = [step for step in log.steps if step.room != LOBBY]
            in_lobby = [step for step in log.steps if step.room == LOBBY]
            games += member_deliveries(in_games, log.seen, self._crowd.watchers)
            lobby += count_deliveries(before, in_lobby, log.counts, self._crowd.watchers[LOBBY])
        for each in (games, lobby):
            broken += [f"{each.unmatched:,} pushes of changes that no client made"] if each.unmatched else []
        server_cores, redis_cores, load_cores = (each / seconds for each in spent)
        return PushFigures(
            rate,
            changes / seconds,
            LagFigures.of(games.every_s, games.missing),
            {cause: LagFigures.of(lags) for cause, lags in sorted(games.lags_s.items())},
            LagFigures.of(lobby.every_s, lobby.missing),
            late_s * 1000,
            server_cores,
            redis_cores,
            load_cores,
            broken,
        )

    def finish(self, shards: int) -> list[str]:
        """Return what is wrong in the end: members in Redis, connections, the server's log."""
        stored = stored_members(lambda _key: self._redis.client, Keys(PREFIX, shards))
        truth = self._crowd.members()
        wrong = [room for room in {*stored, *truth} if {*stored.get(room, ())} != truth.get(room, set())]
        found = [f"{len(wrong):,} rooms in Redis are not what clients did"] if wrong else []
        found += [f"{count:,} x {what}" for what, count in self._crowd.status().broken.items()]
        return found + self._server.failures()

    def _settle(self) -> list[str]:
        """Wait until all views are right; return what is wrong with those that are not."""
        found: list[str] = []

        def is_right() -> bool:
            nonlocal found
            truth = self._crowd.members()
            found = [text for some in self._crowd.call_all("wrong_views", truth=truth) for text in some]
            return not (found or self._crowd.status().arriving)

        if wait_for(is_right, SETTLE_TIMEOUT_S, poll_s=POLL_S):
            return []
        return [f"{len(found):,} views are wrong, or clients not logged in", *found[:EXAMPLES]]

    def _spent(self) -> list[float]:
        """Return the processor time of the server, of Redis and of the load so far."""
        server_s = sum(usage.cpu_seconds_by_pid(self._pids).values())
        return [server_s, usage.cpu_seconds(self._redis.process.pid), self._crowd.status().cpu_s]

    def _wait(self, what: str, seconds: float, is_done: Callable[[], bool]) -> None:
        if not wait_for(is_done, seconds + TIMEOUT_S, poll_s=POLL_S):
            raise TimeoutError(f"not all clients could {what}: {self._crowd.status()}")


def measure_push(
    python: str, clients: int, workers: int, shards: int, rates: Sequence[float], seconds: float
) -> list[PushFigures]:
    """Return what came of each rate; the last one has what was wrong in the end."""
    raise_file_limit()
    flags: dict[str, Any] = {
        "workers": workers,
        "shards": shards,
        "rooms": "open",
        "max-listed-members": LISTED_MEMBERS,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    with (
        LocalRedis() as redis,
        PresenceServer(
            "--redis", redis.url, *words, program=("-P", "-m", "presence"), python=python
        ) as server,
        closing(VisitorCrowd(server.address, clients)) as crowd,
    ):
        run, found = PushRun(server, redis, crowd), []
        run.log_in(clients)
        for rate in rates:
            found.append(run.play(rate, seconds))
            print_progress(push_table(found[-1:]).splitlines()[-2])
        found[-1].broken += run.finish(shards)
    return found


def push_table(found: Sequence[PushFigures]) -> str:
    head = (
        "changes a second | watched | deliveries, missing | lag p50, ms | p99 | max | p99 by cause "
        "| p99 beyond a second | load late, ms | cores of server, Redis, load"
    )
    rows = []
    for each in found:
        causes = ", ".join(f"{cause} {lags.p99_ms:.0f}" for cause, lags in each.causes.items())
        cores = f"{each.server_cores:.2f}, {each.redis_cores:.2f}, {each.load_cores:.2f}"
        shared = (f"{each.late_ms:.0f}", cores)
        rows += [
            (f"{each.changes_per_s:,.0f}", "rooms of ten", *_cells(each.games), causes, "", *shared),
            ("", "the lobby", *_cells(each.lobby), "", f"{each.lobby_beyond_ms:.0f}", "", ""),
        ]
    return markdown(head, rows)


def _cells(lags: LagFigures) -> tuple[str, ...]:
    times = (f"{each:.0f}" for each in (lags.p50_ms, lags.p99_ms, lags.max_ms))
    return (f"{lags.deliveries:,}, {lags.missing:,}", *times)
