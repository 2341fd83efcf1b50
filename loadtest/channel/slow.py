"""``slow``: many who watch and never read, and what they cost the server and those who do read."""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from loadtest import usage
from loadtest.channel.report import Load, Report, percentiles, spread_ms
from loadtest.channel.viewers import Changer, Changes, Deaf, Viewer
from loadtest.client_loop import Client, ClientLoop
from loadtest.outcome import say
from loadtest.records import Data
from loadtest.servers import PresenceServer

SMALL_BUFFERS = ("-m", "loadtest.channel.small_buffers")
LOGIN_S = 60.0
LOGINS_A_SECOND = 300.0  # each watches at once, which costs more than a login
UNSENT_BYTES = 65_536  # the setting's default: what may wait for one of them
UNSENT_TIMEOUT_S = 600.0  # nobody is cut off while it is played
MEMORY_SHARE_MAX = 1.1
P99_RATIO_MAX = 1.2
FILL_S = 60.0
LOOK_S = 1.0
STILL_LOOKS = 3  # looks at which no byte more has gone into the kernel, until they are taken for stuck
WAKE_S = 60.0


@dataclass(frozen=True)
class Plan:
    """What is played.

    Attributes:
        deaf: who watch and never read.
        others: who read, and are measured.
        users: whom all of them watch.
        rate: changes of these a second, by turns; the server takes about one a second of each.
        seconds: of measuring, without those who never read and with them.
        pairs: how often.
    """

    deaf: int = 2000
    others: int = 100
    users: int = 50
    rate: float = 40.0
    seconds: float = 10.0
    pairs: int = 3


@dataclass(frozen=True)
class Pair:
    """One comparison.

    Attributes:
        without, within: ms from a change to its push to those who read; percentiles.
        grown: bytes of memory by which the server grew while nobody of those who are deaf read, at its peak.
        stuck: how many of them had bytes waiting in the server's kernel, of which none left.
        pushes: that those who are deaf were given in the end, of those that there were for them.
        broken: what was not as it has to be.
    """

    without: dict[str, float]
    within: dict[str, float]
    grown: int
    stuck: int
    pushes: tuple[int, int]
    broken: list[str]


class Play:
    """All pairs on one server."""

    def __init__(self, plan: Plan, serving: PresenceServer, loop: ClientLoop) -> None:
        self._plan, self._loop, self._serving = plan, loop, serving
        self._changes = Changes()
        self._uids = [f"user-{number}" for number in range(plan.users)]
        self._users = [Changer(loop, uid, self._changes) for uid in self._uids]
        self._turns = itertools.cycle(self._users)
        self._others = [
            Viewer(loop, f"other-{number}", self._uids, self._changes) for number in range(plan.others)
        ]
        self._changing = False

    def begin(self) -> None:
        """Let those log in who stay throughout."""
        self._bring(self._users, lambda: self._loop.online() == len(self._users))
        self._bring(self._others, lambda: all(each.is_answered for each in self._others))

    def pair(self, number: int) -> Pair:
        """Measure without and with those who never read, and wake these in the end."""
        without = self._measure()
        deaf = [
            Deaf(self._loop, f"deaf-{number}-{each}", self._uids, self._changes)
            for each in range(self._plan.deaf)
        ]
        self._bring(deaf, lambda: all(each.is_answered for each in deaf))
        say(f"slow: {len(deaf):,} watch and read no more")
        self._loop.run(LOOK_S)
        pid, first = self._serving.process.pid, len(self._changes.sent)
        before = usage.memory(pid).rss
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        self._fill(deaf)
        stuck = len(self._waiting(deaf))
        say(f"slow: {stuck:,} are stuck")
        within = self._measure()
        peak = _peak_bytes(pid)
        say(f"slow: memory grew by {(peak - before) / 2**20:.1f} MiB; they wake")
        for each in deaf:
            each.wake()
        newest = self._changes.newest
        woken = self._loop.run(WAKE_S, lambda: all(each.seen == newest for each in deaf))
        say("slow: they have read what waited")
        pushes = sum(each.pushes for each in deaf), (len(self._changes.sent) - first) * len(deaf)
        broken = self._broken(deaf, woken=woken, stuck=stuck)
        for each in deaf:
            each.returns = False
            each.drop()
        return Pair(without, within, peak - before, stuck, pushes, broken)

    def _broken(self, deaf: list[Deaf], *, woken: bool, stuck: int) -> list[str]:
        broken = []
        if not woken:
            behind = sum(each.seen != self._changes.newest for each in deaf)
            broken.append(
                f"{behind} of {len(deaf)} who were deaf do not see the newest states when they read"
            )
        if stuck < len(deaf):
            broken.append(f"only {stuck} of {len(deaf)} were stuck")
        if fallen := sum(each.fallen for each in [*deaf, *self._others]):
            broken.append(f"ids of {fallen} pushes do not rise")
        if any(each.seen != self._changes.newest for each in self._others):
            broken.append("not all who read see the newest states")
        if refused := sum(each.refused for each in self._users):
            broken.append(f"{refused} changes were refused")
        if self._loop.endings:
            broken.append(f"connections ended by the server: {dict(self._loop.endings)}")
        return broken

    def _bring(self, clients: Sequence[Client], done: Callable[[], bool]) -> None:
        self._loop.bring(clients, LOGINS_A_SECOND)
        if not self._loop.run(LOGIN_S, done):
            raise SystemExit(f"not all of {len(clients)} could log in and watch")

    def _measure(self) -> dict[str, float]:
        """Return the delays to those who read, while changes go on."""
        delays: list[float] = []
        self._change(on=True)
        for each in self._others:
            each.delays = delays
        self._loop.run(self._plan.seconds)
        self._change(on=False)
        self._loop.run(LOOK_S)
        for each in self._others:
            each.delays = None
        return percentiles([each * 1000 for each in delays])

    def _fill(self, deaf: list[Deaf]) -> None:
        """Let changes go on until nothing more goes into the kernel's buffers for those who never read.

        Each comes when those who read have the one before: the server is not to be behind.
        """
        give_up, still, before = time.monotonic() + FILL_S, 0, -1
        while still < STILL_LOOKS and time.monotonic() < give_up:
            look = time.monotonic() + LOOK_S
            while (begun := time.monotonic()) < look:
                change = self._change_one()
                self._loop.run(LOOK_S, partial(self._have, *change))
                self._loop.run(begun + 1 / self._plan.rate - time.monotonic())
            found = sum(self._waiting(deaf))
            still = still + 1 if found == before else 0
            before = found

    def _have(self, uid: str, number: int) -> bool:
        return all(each.seen.get(uid) == number for each in (self._others[0], self._others[-1]))

    def _waiting(self, deaf: list[Deaf]) -> list[int]:
        """Return the bytes in the server's kernel that have not left, of each for whom there are any."""
        port = f":{self._serving.address[1]:04X}"
        rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        queues = {row[2]: int(row[4].partition(":")[0], 16) for row in rows if row[1].endswith(port)}
        return [size for each in deaf if each.is_in and (size := queues.get(each.name(), 0))]

    def _change_one(self) -> tuple[str, int]:
        """Let the next user change; return who, and the number of the change."""
        user = next(self._turns)
        return user.uid, user.change()

    def _change(self, *, on: bool) -> None:
        was, self._changing = self._changing, on
        if on and not was:
            self._change_next(time.monotonic())

    def _change_next(self, due: float) -> None:
        if self._changing:
            self._change_one()
            due += 1 / self._plan.rate
            self._loop.at(due, lambda: self._change_next(due))


def slow(plan: Plan, _seed: int) -> Report:
    """Play it, and judge."""
    with Data() as data:
        serving = PresenceServer(
            "--redis", data.url, "--unsent-timeout", f"{UNSENT_TIMEOUT_S:g}", program=SMALL_BUFFERS
        )
        try:
            with ClientLoop(serving.address, beat_s=12.0) as loop:
                load = Load()
                play = Play(plan, serving, loop)
                play.begin()
                pairs = [play.pair(number) for number in range(plan.pairs)]
                share = load.core_share()
        finally:
            serving.stop()
    return _report(plan, pairs, share, loop.late_max_s, serving.failures())


def _report(plan: Plan, pairs: list[Pair], share: float, late_max_s: float, failures: list[str]) -> Report:
    bound = plan.deaf * UNSENT_BYTES
    grown = max(pair.grown for pair in pairs)
    ratios = [pair.within["p99"] / pair.without["p99"] for pair in pairs]
    ratio = statistics.median(ratios)
    given, due = pairs[-1].pushes
    report = Report(
        f"slow: {plan.deaf:,} watchers that never read, {plan.others} others, {plan.users} users, "
        f"{plan.rate:g} changes/s"
    )
    report.rows = {
        "stuck": ", ".join(f"{pair.stuck:,}" for pair in pairs),
        "memory grew by, at its peak": f"{grown / 2**20:.1f} MiB, {grown / plan.deaf / 1024:.1f} KiB each; "
        f"{grown / bound:.3f} of what may wait ({UNSENT_BYTES // 1024} KiB each)",
        "others' pushes without them": "; ".join(spread_ms(pair.without) for pair in pairs),
        "others' pushes with them": "; ".join(spread_ms(pair.within) for pair in pairs),
        "p99 with / without": f"{ratio:.2f} (median of {', '.join(f'{each:.2f}' for each in ratios)})",
        "pushed to each of them in the end": f"{given / plan.deaf:,.0f} of {due / plan.deaf:,.0f} changes",
        "the load itself": f"{share:.0%} of a core, late by {late_max_s * 1000:.0f} ms at most",
    }
    report.figures = {
        "pairs": [vars(pair) for pair in pairs],
        "grown_bytes": grown,
        "bound_bytes": bound,
        "p99_ratios": ratios,
        "p99_ratio": ratio,
        "load_core_share": share,
    }
    report.broken = [*(words for pair in pairs for words in pair.broken), *failures]
    if grown > MEMORY_SHARE_MAX * bound:
        report.broken.append(f"memory grew by {grown / bound:.2f} of what may wait")
    if ratio > P99_RATIO_MAX:
        report.broken.append(f"p99 of others {ratio:.2f} times that without them")
    return report


def _peak_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmHWM"))) * 1024
