"""``flapping``: clients who drop their connection and return again and again, and then stay away once."""

import random
import time
from dataclasses import dataclass
from functools import partial

from loadtest.channel.entries import by_user, read_entries
from loadtest.channel.flapping_judge import Life, Promise, judge
from loadtest.channel.report import Report, staged
from loadtest.client_loop import Client, ClientLoop
from loadtest.outcome import say, spread_ms
from presence.store.keys import Keys
from protocol import KEEPALIVE

LOGIN_S = 20.0
SETTLE_S = 3.0
RETURNS_MAX = 6  # the server's `flap_returns`: more in a minute are flapping
AWAY_MIN_S = 0.25  # shorter, and the return is there before the loss was read: that is a take-over
AWAY_SHARE = 0.4  # of the grace, or of the time between two drops: so long a short absence takes at most


@dataclass(frozen=True)
class Plan:
    """What is played.

    Attributes:
        clients: who drop and return.
        calm: who only stay away once.
        drops: of each, in `minute_s`.
        minute_s: seconds.
        workers: of the server.
        grace_s, grace_max_s, idle_s, tick_s: its settings.
    """

    clients: int = 100
    calm: int = 20
    drops: int = 20
    minute_s: float = 60.0
    workers: int = 1
    grace_s: float = 5.0
    grace_max_s: float = 60.0
    idle_s: float = 30.0
    tick_s: float = 1.0

    @property
    def long_away_s(self) -> float:
        """How long everybody stays away once: longer than any grace can be."""
        return min(self.grace_max_s, self.idle_s) + self.tick_s + SETTLE_S

    @property
    def promise(self) -> Promise:
        """What is due."""
        return Promise(
            grace=1000 * self.grace_s,
            grace_max=1000 * self.grace_max_s,
            idle_timeout=1000 * self.idle_s,
            tick=1000 * self.tick_s,
        )


class Flapper(Client):
    """A client that writes down what it does.

    Attributes:
        drops: short absences so far.
    """

    def __init__(self, loop: ClientLoop, uid: str) -> None:
        super().__init__(loop, uid)
        self.drops = 0
        self._left_ms = self._back_ms = 0.0

    def be_away(self, seconds: float) -> None:
        """Drop the connection, and return so much later."""
        if self.is_in:
            self.drops += 1
            self.drop(reset=random.random() < 0.5)
            self.loop.at(time.monotonic() + seconds, self.connect)

    def stay_away(self, seconds: float) -> None:
        """The same, for longer, with a last sign of life."""
        self.send(KEEPALIVE)
        self._left_ms = self.loop.unix_ms(time.monotonic())
        self.drop()
        self.loop.at(time.monotonic() + seconds, self.return_)

    def return_(self) -> None:
        """Be back."""
        self._back_ms = self.loop.unix_ms(time.monotonic())
        self.connect()

    def life(self, *, flapped: bool | None) -> Life:
        """Return what it did."""
        return Life(self.drops, self._left_ms, self._left_ms, self._back_ms, flapped)


def flapping(plan: Plan, seed: int) -> Report:
    """Play it, and judge."""
    chance = random.Random(seed)
    flags = (
        *("--workers", str(plan.workers), "--disconnect-grace", f"{plan.grace_s:g}"),
        *("--max-grace", f"{plan.grace_max_s:g}", "--idle-timeout", f"{plan.idle_s:g}"),
        *("--tick", f"{plan.tick_s:g}", "--flap-returns", str(RETURNS_MAX)),
    )
    with staged(*flags, beat_s=0.4 * plan.idle_s) as stage:
        wild = [Flapper(stage.loop, f"wild-{number}") for number in range(plan.clients)]
        calm = [Flapper(stage.loop, f"calm-{number}") for number in range(plan.calm)]
        _play(plan, chance, stage.loop, wild, calm)
        entries = by_user(read_entries(stage.data.events(Keys())))
    flaps = plan.drops > RETURNS_MAX and plan.minute_s <= 60.0
    flapped = None if flaps and plan.workers > 1 else flaps
    lives = {each.uid: each.life(flapped=flapped) for each in wild}
    lives |= {each.uid: each.life(flapped=False) for each in calm}
    verdict, graces = judge(lives, entries, plan.promise)
    drops = sum(each.drops for each in wild)
    told = [entry for each in wild for entry in entries.get(each.uid, ())]
    told_calm = sum(len(entries.get(each.uid, ())) for each in calm)
    report = Report(
        f"flapping: {plan.clients} clients, {plan.drops} drops each in {plan.minute_s:g} s, "
        f"grace {plan.grace_s:g} s, {plan.workers} workers"
    )
    report.rows = {
        "dropped, and back within the grace": f"{drops:,} times",
        "events of these, but for the first login": f"{len(told) - len(wild):,}, due {2 * len(wild):,}",
        "events of calm clients' long absence": f"{told_calm - len(calm):,}, due {2 * len(calm):,}",
        "longer graces, as the events name them": f"{len(graces)}: {spread_ms(ms / 1000 for ms in graces)}",
    }
    report.figures = {"drops": drops, "graces_ms": graces}
    report.broken = verdict.broken + stage.server.failures()
    if drops < plan.clients * plan.drops:
        report.broken.append(f"only {drops:,} drops took place")
    return report


def _play(
    plan: Plan, chance: random.Random, loop: ClientLoop, wild: list[Flapper], calm: list[Flapper]
) -> None:
    """Let all log in; some drop and return for a minute; in the end all stay away once, and return."""
    everybody = [*wild, *calm]
    loop.bring(everybody)
    if not loop.run(LOGIN_S, lambda: loop.online() == len(everybody)):
        raise RuntimeError(f"only {loop.online()} of {len(everybody)} could log in")
    begun = time.monotonic()
    every_s = plan.minute_s / plan.drops
    for client in wild:
        first = begun + chance.uniform(0.0, 0.3 * every_s)
        for number in range(plan.drops):
            seconds = chance.uniform(AWAY_MIN_S, max(AWAY_MIN_S, AWAY_SHARE * min(plan.grace_s, every_s)))
            loop.at(first + number * every_s, partial(client.be_away, seconds))
    loop.run(plan.minute_s)
    loop.run(LOGIN_S, lambda: loop.online() == len(everybody))
    say("flapping: all stay away once")
    for client in everybody:
        client.stay_away(plan.long_away_s)
    loop.run(plan.long_away_s + SETTLE_S)
