"""``messages``: messages between random users, as many as the servers carry, and then half as many."""

import random
import time
from dataclasses import dataclass

from loadtest.channel.letters import Correspondent, Ledger
from loadtest.channel.message_judge import MessageVerdict, judge
from loadtest.channel.report import Load, Report, percentiles, spread_ms
from loadtest.client_loop import ClientLoop
from loadtest.outcome import say
from loadtest.records import Data
from loadtest.servers import PresenceServer
from protocol import Code

LOGIN_S = 30.0
SETTLE_S = 1.0  # after the logins, until Redis knows of all
LAST_ANSWERS_S = 10.0
SEND_TICK_S = 0.002
AT_ONCE = 4  # messages to one user in one go, at most, where as many as possible are sent
RATE_MIN = 5000.0
P99_MAX_MS = 100.0
TWO_DEVICES = 10  # one in so many users has a second device
ABSENT = 50  # and one in so many never logs in
BEAT_S = 10.0


@dataclass(frozen=True)
class Plan:
    """What is played.

    Attributes:
        users: who send and receive.
        messages: as fast as may be.
        window: how many of these wait for their answers at once.
        rate: messages a second after that, evenly; 0: half of what is promised.
        seconds: for which that goes on.
        movers: users who lose their connection again and again, and are back, mostly on another worker.
        move_each_s: how often one of them does.
        workers, shards: of the server.
        rate_min, p99_max_ms: what is promised.
    """

    users: int = 1000
    messages: int = 100_000
    window: int = 512
    rate: float = RATE_MIN / 2
    seconds: float = 20.0
    movers: int = 100
    move_each_s: float = 4.0
    workers: int = 3
    shards: int = 1
    rate_min: float = RATE_MIN
    p99_max_ms: float = P99_MAX_MS


class Play:
    """One run."""

    def __init__(self, plan: Plan, seed: int, loop: ClientLoop) -> None:
        self._plan, self._loop = plan, loop
        self._chance = random.Random(seed)
        self.ledger = Ledger()
        everybody = range(plan.users)
        self.absent = frozenset(f"user-{number}" for number in everybody if number % ABSENT == ABSENT - 1)
        self._uids = [f"user-{number}" for number in everybody]
        self.people = [
            Correspondent(loop, uid, device, self.ledger)
            for number, uid in enumerate(self._uids)
            if uid not in self.absent
            for device in ("", *(("pad",) if number % TWO_DEVICES == 0 else ()))
        ]
        self._movers = self.people[: plan.movers]
        self.moves = 0
        self._moving = False

    def run(self) -> tuple[float, int]:
        """Play it; return how many messages a second were handed, and how many were sent by then."""
        loop = self._loop
        loop.bring(self.people)
        if not loop.run(LOGIN_S, lambda: loop.online() == len(self.people)):
            raise SystemExit(f"only {loop.online()} of {len(self.people)} could log in")
        loop.run(SETTLE_S)
        self._moving = True
        self._move()
        begun = time.monotonic()
        self._fill()
        loop.run(600.0, lambda: len(self.ledger) >= self._plan.messages)
        loop.run(LAST_ANSWERS_S, lambda: not self.ledger.open)
        seconds, fast = self.ledger.answered_at - begun, len(self.ledger)
        rate = sum(handed > 0 for handed in self.ledger.handed) / seconds
        say(f"messages: {fast:,} in {seconds:.1f} s, {rate:,.0f} a second were handed")
        self._send_evenly(time.monotonic(), time.monotonic())
        loop.run(self._plan.seconds)
        self._moving = False
        loop.run(LAST_ANSWERS_S, lambda: not self.ledger.open)
        loop.run(1.0)  # what is handed may be on its way
        return rate, fast

    def _fill(self) -> None:
        """Send as long as not too many wait for their answers."""
        ledger, plan = self.ledger, self._plan
        now = time.monotonic()
        while ledger.open < plan.window and len(ledger) < plan.messages:
            count = min(self._chance.randint(1, AT_ONCE), plan.messages - len(ledger))
            self._sender().write_to(self._chance.choice(self._uids), count, now)
        if len(ledger) < plan.messages:
            self._loop.at(now + SEND_TICK_S, self._fill)

    def _send_evenly(self, begun: float, sent_until: float) -> None:
        """Send what is due, whatever the servers do."""
        now, plan = time.monotonic(), self._plan
        until = min(now, begun + plan.seconds)
        for number in range(int((sent_until - begun) * plan.rate), int((until - begun) * plan.rate)):
            self._sender().write_to(self._chance.choice(self._uids), 1, begun + number / plan.rate)
        if until < begun + plan.seconds:
            self._loop.at(now + SEND_TICK_S, lambda: self._send_evenly(begun, until))

    def _sender(self) -> Correspondent:
        while not (sender := self._chance.choice(self.people)).can_send:
            pass
        return sender

    def _move(self) -> None:
        if self._moving and self._movers:
            self._chance.choice(self._movers).move()
            self.moves += 1
            pause_s = self._plan.move_each_s / len(self._movers)
            self._loop.at(time.monotonic() + self._chance.expovariate(1 / pause_s), self._move)


def messages(plan: Plan, seed: int) -> Report:
    """Play it, and judge."""
    with Data() as data:
        flags = ("--workers", str(plan.workers), "--shards", str(plan.shards))
        serving = PresenceServer("--redis", data.url, *flags)
        try:
            with ClientLoop(serving.address, beat_s=BEAT_S) as loop:
                load = Load()
                play = Play(plan, seed, loop)
                rate, fast = play.run()
                share = load.core_share()
        finally:
            serving.stop()
    moved = {each.uid for each in play.people if not each.stays}
    stayed: dict[str, int] = {}
    for each in play.people:
        if each.uid not in moved:
            stayed[each.uid] = stayed.get(each.uid, 0) + 1
    inboxes = {(each.uid, each.device): each.inbox for each in play.people}
    verdict = judge(play.ledger.sent(), inboxes, stayed, play.absent)
    report = _report(plan, play, verdict, rate, fast)
    report.rows["the load itself"] = f"{share:.0%} of a core, late by {loop.late_max_s * 1000:.0f} ms at most"
    report.figures |= {"seed": seed, "load_core_share": share, "load_late_max_s": loop.late_max_s}
    report.figures["endings"] = loop.endings
    report.broken += serving.failures()
    if loop.endings:
        report.broken.append(f"connections ended by the server: {dict(loop.endings)}")
    return report


def _report(plan: Plan, play: Play, verdict: MessageVerdict, rate: float, fast: int) -> Report:
    ledger = play.ledger
    answered = percentiles([each * 1000 for each in ledger.answered_s[fast:] if each >= 0])
    received = percentiles([each * 1000 for each in ledger.received_s[fast:] if each >= 0])
    outcomes = {
        "sent": len(ledger),
        "handed": verdict.handed,
        "refused": verdict.refused,
        "lost": verdict.lost.total(),
        "received": verdict.received,
        "missed": verdict.missed,
    }
    lost = ", ".join(f"{count:,} {Code(code).reason}" for code, count in verdict.lost.items())
    report = Report(
        f"messages: {plan.users:,} users, {plan.workers} workers, {plan.shards} shards, "
        f"{plan.movers} users moving"
    )
    report.rows = {
        "sent": f"{len(ledger):,}",
        "handed + refused + reported lost": f"{verdict.handed:,} + {verdict.refused:,} + "
        f"{verdict.lost.total():,} = {verdict.handed + verdict.refused + verdict.lost.total():,}"
        + (f" ({lost})" if lost else ""),
        "received by devices": f"{verdict.received:,}",
        "handed to whoever moved, and missed": f"{verdict.missed:,}",
        "moves": f"{play.moves:,}",
        f"as fast as may be, {plan.window} waiting": f"{rate:,.0f} handed a second, of {fast:,}",
        f"at {plan.rate:,.0f} a second, to the receipt": spread_ms(received),
        f"at {plan.rate:,.0f} a second, to the answer": spread_ms(answered),
    }
    report.figures = {**outcomes, "codes": verdict.lost, "rate": rate, "even_rate": plan.rate}
    report.figures["moves"] = play.moves
    report.figures |= {"received_ms": received, "answered_ms": answered, "wrong": verdict.wrong}
    report.broken = list(verdict.broken)
    if rate < plan.rate_min:
        report.broken.append(f"only {rate:,.0f} messages a second, promised {plan.rate_min:,.0f}")
    for what, found in (("receipt", received), ("answer", answered)):
        if found["p99"] > plan.p99_max_ms:
            report.broken.append(f"to the {what} p99 {found['p99']:.0f} ms, {plan.p99_max_ms:.0f} promised")
    if verdict.handed + verdict.refused + verdict.lost.total() != len(ledger):
        report.broken.append("handed + refused + reported lost is not what was sent")
    return report
