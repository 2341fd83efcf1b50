"""``watch``: many who watch, while those whom they watch come, go and change, and servers and Redis fail."""

import random
import time
from collections import Counter
from dataclasses import dataclass

from loadtest.channel.entries import Entry, by_user
from loadtest.channel.faults import Faults
from loadtest.channel.people import Person, Watcher
from loadtest.channel.report import Load, Report, percentiles, spread_ms
from loadtest.channel.streams import Count, read_entries
from loadtest.channel.watch_judge import Truth, WatchVerdict, judge
from loadtest.client_loop import ClientLoop
from loadtest.outcome import say
from loadtest.records import Data
from loadtest.servers import PresenceServer
from presence.store.keys import Keys

LOGIN_S = 30.0
QUIET_S = 3.0
LOOK_S = 0.5
SAY_S = 10.0
STALE_MAX_MS = 2500.0
TWO_DEVICES = 5  # one in so many users has a second device
RESTLESS = 10  # and one in so many watchers looks away, or loses the connection, now and then


@dataclass(frozen=True)
class Plan:
    """What is played.

    Attributes:
        watchers, each: how many watch, and how many users each of them.
        users: those to watch.
        transitions: entries of these users in the streams, at least.
        workers, shards: of the server.
        rate: acts a second.
        kills, restarts: of a worker, and of Redis.
        away_s: for which Redis is away.
        idle_s, lease_s, tick_s, grace_s: the server's settings.
    """

    watchers: int = 200
    each: int = 50
    users: int = 1000
    transitions: int = 10_000
    workers: int = 3
    shards: int = 3
    rate: float = 250.0
    kills: int = 2
    restarts: int = 2
    away_s: float = 2.0
    idle_s: float = 5.0
    lease_s: float = 2.0
    tick_s: float = 0.5
    grace_s: float = 1.0

    @property
    def flags(self) -> tuple[str, ...]:
        """Of `presence serve`."""
        seconds = {
            "--idle-timeout": self.idle_s,
            "--lease": self.lease_s,
            "--tick": self.tick_s,
            "--disconnect-grace": self.grace_s,
        }
        words = [word for name, value in seconds.items() for word in (name, f"{value:g}")]
        return ("--workers", str(self.workers), "--shards", str(self.shards), *words)

    @property
    def settle_s(self) -> float:
        """How long after the last act something may still be told: of whoever fell silent on a dead node."""
        return self.lease_s + self.idle_s + self.tick_s + self.grace_s + QUIET_S


class Play:
    """One run.

    Args:
        plan: what is played.
        seed: of what is drawn.
        count: of the entries.
    """

    def __init__(
        self, plan: Plan, seed: int, store: Data, serving: PresenceServer, loop: ClientLoop, count: Count
    ) -> None:
        self._plan, self._loop, self._store = plan, loop, store
        self._chance = random.Random(seed)
        self._keys = Keys(shards=plan.shards)
        uids = [f"user-{number}" for number in range(plan.users)]
        self._people = [
            Person(loop, uid, device, self._chance, plan.grace_s)
            for number, uid in enumerate(uids)
            for device in ("", *(("pad",) if number % TWO_DEVICES == 0 else ()))
        ]
        self.watchers = [
            Watcher(loop, f"watcher-{number}", self._chance.sample(uids, plan.each))
            for number in range(plan.watchers)
        ]
        self.faults = Faults(plan.kills, plan.restarts, plan.transitions, plan.away_s, store, serving)
        self._count = count
        self._acting = False

    def run(self) -> None:
        """Play it until all is quiet."""
        loop, plan = self._loop, self._plan
        loop.bring(self.watchers)
        if not loop.run(LOGIN_S, lambda: all(each.is_answered for each in self.watchers)):
            raise SystemExit(f"only {loop.online()} of {plan.watchers} could log in and watch")
        self._acting = True
        self._act()
        self._disturb()
        said = time.monotonic()
        while not (self.faults.over and self._transitions >= plan.transitions):
            loop.run(LOOK_S)
            self.faults.inject(self._transitions)
            if time.monotonic() - said >= SAY_S:
                said = time.monotonic()
                say(f"watch: {self._transitions:,} transitions, {dict(self.faults.proofs)}")
        self._acting = False
        say(f"watch: {self._transitions:,} transitions; waiting until all is quiet")
        loop.run(plan.settle_s)
        before = (-1, -1)
        while before[0] != self._count.entries or before[1] == self._count.looks:
            before = self._count.entries, self._count.looks
            loop.run(QUIET_S)

    def entries(self) -> list[Entry]:
        """Return what the streams say of those who are watched."""
        found = read_entries(self._store.client, self._keys)
        return [entry for entry in found if entry.uid.startswith("user-")]

    @property
    def _transitions(self) -> int:
        """How many there were, about: the watchers themselves are told of, too."""
        return self._count.entries - len(self.watchers)

    def _act(self) -> None:
        if self._acting:
            self._chance.choice(self._people).act()
            self._loop.at(time.monotonic() + self._chance.expovariate(self._plan.rate), self._act)

    def _disturb(self) -> None:
        """Let a restless watcher do what it does."""
        if self._acting:
            watcher = self._chance.choice(self.watchers[::RESTLESS])
            self._chance.choice((watcher.leave, watcher.look_away))()
            self._loop.at(time.monotonic() + self._chance.uniform(0.0, 0.5), self._disturb)


def watch(plan: Plan, seed: int) -> Report:
    """Play it, and judge."""
    with Data(keep=True) as store:
        serving = PresenceServer("--redis", store.url, *plan.flags)
        try:
            with (
                ClientLoop(serving.address, beat_s=0.4 * plan.idle_s) as loop,
                Count(store.client, Keys(shards=plan.shards)) as count,
            ):
                load = Load()
                play = Play(plan, seed, store, serving, loop, count)
                play.run()
                share = load.core_share()
                entries = play.entries()
                verdict = judge({each.uid: each.history for each in play.watchers}, Truth(by_user(entries)))
                unanswered = sum(not each.is_answered for each in play.watchers)
        finally:
            serving.stop()
    report = _report(plan, play, entries, verdict)
    report.rows["the load itself"] = f"{share:.0%} of a core, late by {loop.late_max_s * 1000:.0f} ms at most"
    report.figures |= {"seed": seed, "load_core_share": share, "load_late_max_s": loop.late_max_s}
    report.broken += play.faults.failed + serving.failures()
    if unanswered:
        report.broken.append(f"{unanswered} watchers have no answer in the end")
    if len(entries) < plan.transitions:
        report.broken.append(f"only {len(entries):,} transitions")
    return report


def _report(plan: Plan, play: Play, entries: list[Entry], verdict: WatchVerdict) -> Report:
    report = Report(
        f"watch: {plan.watchers} watchers of {plan.each} users each, {plan.users:,} users, "
        f"{plan.workers} workers, {plan.shards} shards"
    )
    calm_only = [
        delay
        for stood_ms, delay in verdict.decided_ms
        if not any(begun <= stood_ms <= end for begun, end in play.faults.spans_ms)
    ]
    spreads = {
        "decided_ms": percentiles([delay for _, delay in verdict.decided_ms]),
        "decided_in_calm_ms": percentiles(calm_only),
        "stood_ms": percentiles([delay for _, delay in verdict.stood_ms]),
        "stale_ms": percentiles(verdict.stale_ms),
    }
    types = Counter(entry.fields["type"] for entry in entries)
    refused = sum((each.refused for each in play.watchers), Counter[int]())
    report.rows = {
        "transitions": f"{len(entries):,}: "
        + ", ".join(f"{count:,} {name}" for name, count in types.items()),
        "injected": "; ".join(f"{count} x {what}" for what, count in play.faults.proofs.items()) or "nothing",
        "pushes that were right": f"{verdict.pushes:,}",
        "states in answers that were right": f"{verdict.answers:,}",
        "from the decision to the push": spread_ms(spreads["decided_ms"]),
        "the same, but for Redis' outages": spread_ms(spreads["decided_in_calm_ms"]),
        "from the entry to the push": spread_ms(spreads["stood_ms"]),
        "answers over when asked for, by": spread_ms(spreads["stale_ms"]),
        "watches refused and asked again": f"{refused.total():,} {dict(refused) if refused else ''}",
    }
    report.figures = {
        **spreads,
        "transitions": len(entries),
        "types": types,
        "injected": play.faults.proofs,
        "pushes": verdict.pushes,
        "answers": verdict.answers,
        "refused": refused,
        "wrong": verdict.wrong,
    }
    report.broken = list(verdict.broken)
    if spreads["stale_ms"]["max"] > STALE_MAX_MS:
        report.broken.append(f"an answer was over by {spreads['stale_ms']['max']:,.0f} ms when asked for")
    if not play.faults.proofs and plan.kills + plan.restarts:
        report.broken.append("nothing was injected")
    return report
