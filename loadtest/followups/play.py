"""One run: everybody goes offline, some come back in time, and meanwhile one after the other is killed."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.chaos.redis_server import Store
from loadtest.followups.handler import handled
from loadtest.followups.processes import Runners
from loadtest.followups.streams import read_events, read_told
from loadtest.followups.verdict import Told, Verdict, judge
from loadtest.nodes.crowd import Crowd
from loadtest.outcome import say
from loadtest.servers import PresenceServer, wait_for
from presence.store.client import RedisError
from presence.store.keys import Keys

IDLE_S, LEASE_S, GRACE_S = 5.0, 2.0, 1.0
LOGIN_TIMEOUT_S = 60.0
SAY_EACH_S = 5.0
LOOK_S = 0.05
QUIET_S = (
    4.0  # after the last: one told twice would be close behind, and what a killed handler had comes again
)


@dataclass(frozen=True)
class Plan:
    """What is played.

    Attributes:
        users, back: how many go, and how many of them come back in time.
        after_s: of the rule.
        workers, runners: processes.
        kill_every_s: between two kills -9 of a worker or a runner; 0: none is killed.
        kills_all: whether all processes of the server are killed at once, and Redis, too.
        late_max_s: how late a follow-up may be.
    """

    users: int = 10_000
    back: int = 4000
    after_s: float = 25.0
    workers: int = 3
    runners: int = 2
    kill_every_s: float = 1.0
    kills_all: bool = True
    late_max_s: float = 15.0


@dataclass
class Kills:
    """How many were killed."""

    workers: int = 0
    runners: int = 0
    servers: int = 0
    redis: int = 0


@dataclass
class Outcome:
    """What came of it."""

    verdict: Verdict
    kills: Kills
    handled: list[str]
    told: list[Told]
    broken: list[str] = field(default_factory=list)


class Stage:
    """The server, the Redis and the runners.

    Args:
        plan: what is played.
        folder: for files.
    """

    def __init__(self, plan: Plan, folder: Path, stack: contextlib.ExitStack) -> None:
        self._plan = plan
        self._stack = stack
        self._config = folder / "presence.toml"
        self._config.write_text(f'[[followups]]\nname = "back"\nafter = {plan.after_s}\npayload = "x"\n')
        self.handled = folder / "handled"
        self.handled.mkdir()
        self.store = stack.enter_context(Store())
        self.server = self._serve(0)
        stack.callback(lambda: self.server.stop())  # noqa: PLW0108 - of the server that there is then
        self.runners = stack.enter_context(Runners(self.store.url, self._config, self.handled, plan.runners))
        self.kills = Kills()

    def _serve(self, port: int) -> PresenceServer:
        flags = (
            *("--config", str(self._config), "--workers", str(self._plan.workers), "--shards", "1"),
            *("--idle-timeout", f"{IDLE_S}", "--lease", f"{LEASE_S}", "--tick", "0.5"),
            *("--disconnect-grace", f"{GRACE_S}"),
        )
        return PresenceServer("--redis", self.store.url, *flags, port=port)

    def kill_one(self, chance: random.Random) -> None:
        """Kill a worker or a runner."""
        workers = sorted(self.server.workers().values())
        if chance.random() < 0.5 and workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
                self.kills.workers += 1
        else:
            self.runners.kill(chance.randrange(1000))
            self.kills.runners += 1

    def kill_server(self) -> None:
        """Kill all processes of the server, and start it anew on the same port."""
        pids = [self.server.process.pid, *self.server.workers().values()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.server.process.wait()
        self.kills.servers += 1
        self.server = self._serve(self.server.address[1])

    def kill_redis(self) -> None:
        """Kill Redis, and start it with what its append-only file has."""
        self.store.kill()
        time.sleep(0.5)
        self.store.start()
        self.kills.redis += 1

    def length(self) -> int:
        """Return how many follow-ups were told so far; -1 while Redis is away."""
        try:
            return int(self.store.client.xlen(Keys().followups(0)))
        except RedisError:
            return -1


def play(plan: Plan, folder: Path, seed: int) -> Outcome:
    """Play it, and judge."""
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        stage = Stage(plan, folder, stack)
        address, beat_s = stage.server.address, 0.4 * IDLE_S
        stayers = plan.users - plan.back
        stay = stack.enter_context(Crowd([address], "stay", stayers, beat_s=beat_s))
        back = stack.enter_context(Crowd([address], "back", plan.back, beat_s=beat_s, returns=True))
        for crowd, count in ((stay, stayers), (back, plan.back)):
            crowd.bring(range(count), 2000)
            if not crowd.wait_online(count, LOGIN_TIMEOUT_S):
                raise SystemExit(f"only {crowd.online()} of {count} could log in")
        time.sleep(1.0)
        say(f"followups: {plan.users:,} users are online; all go, {plan.back:,} come back in time")
        gone = time.monotonic()
        stay.hush(range(0, stayers, 2))
        stay.log_out(range(1, stayers, 2))
        back.move(range(plan.back), (0.2 * plan.after_s, 0.4 * plan.after_s))
        _kill_until_told(plan, stage, chance, gone, stayers)
        time.sleep(QUIET_S)
        told, events = [*read_told(stage.store.client)], [*read_events(stage.store.client)]
        seconds, _ = stage.store.client.time()
        failures = stage.server.failures()
        outcome = Outcome(
            judge(
                events,
                told,
                after_ms=round(plan.after_s * 1000),
                late_max_ms=round(plan.late_max_s * 1000),
                now_ms=seconds * 1000,
            ),
            stage.kills,
            handled(stage.handled),
            told,
        )
    outcome.broken = [*outcome.verdict.broken, *failures, *_by_name(plan, outcome)]
    return outcome


def _kill_until_told(plan: Plan, stage: Stage, chance: random.Random, gone: float, stayers: int) -> None:
    """Kill one after the other until the last follow-up was told and handled, or for too long."""
    latest = gone + IDLE_S + LEASE_S + IDLE_S + plan.after_s + plan.late_max_s
    acts: list[tuple[float, Callable[[], None]]] = []
    if plan.kills_all:
        acts = [
            (gone + 0.6 * plan.after_s, stage.kill_server),
            (gone + plan.after_s + IDLE_S / 2, stage.kill_redis),  # some are told, others are not yet
        ]
    next_kill, next_word = time.monotonic() + plan.kill_every_s, 0.0
    while time.monotonic() < latest and not (stage.length() >= stayers and not acts):
        now = time.monotonic()
        if acts and now >= acts[0][0]:
            acts.pop(0)[1]()
        elif plan.kill_every_s and now >= next_kill:
            stage.kill_one(chance)
            next_kill = now + plan.kill_every_s
        stage.runners.revive()
        if now >= next_word:
            say(f"followups: {now - gone:.0f} s, told {stage.length():,}, {stage.kills}")
            next_word = now + SAY_EACH_S
        time.sleep(LOOK_S)
    wait_for(lambda: len({*handled(stage.handled)}) >= stage.length(), plan.late_max_s, look_s=0.5)


def _by_name(plan: Plan, outcome: Outcome) -> list[str]:
    """Hold it against what the clients meant to do, too."""
    wanted = {f"stay-{number}" for number in range(plan.users - plan.back)}
    told = outcome.verdict.told
    times: dict[str, int] = {}
    for each in outcome.told:
        times[each.uid] = times.get(each.uid, 0) + 1
    return [
        *([f"{len(wanted - told)} who stayed away got none"] if wanted - told else []),
        *(
            [f"{len(told - wanted)} who came back got one: {sorted(told - wanted)[:3]}"]
            if told - wanted
            else []
        ),
        *([f"{max(times.values())} follow-ups of one user"] if max(times.values(), default=0) > 1 else []),
        *(
            ["handled are others than told"]
            if {*outcome.handled} != {each.id for each in outcome.told}
            else []
        ),
    ]
