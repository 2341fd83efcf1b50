"""One run: everybody goes offline, some come back in time, and meanwhile one after the other is killed."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import protocol
from loadtest.checker.periods import id_order
from loadtest.client_loop import Client, ClientLoop, LoopThread
from loadtest.followups.handler import FOLDER, handled
from loadtest.followups.verdict import Told, Verdict, judge
from loadtest.outcome import say
from loadtest.records import Data
from loadtest.servers import PresenceServer, wait_for
from presence.store.client import RedisError
from presence.store.keys import Keys

IDLE_S, LEASE_S, GRACE_S = 5.0, 2.0, 1.0
LOGIN_TIMEOUT_S = 60.0
SAY_EACH_S = 5.0
LOOK_S = 0.05
QUIET_S = 4.0  # after the last: one told twice would be close behind, what a killed handler had comes again
RETRY_S = 3.0  # until what a killed runner had is handled by another
STOP_TIMEOUT_S = 10.0
PAGE = 2000


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


class Runners:
    """``presence followups run``, several times; whoever is killed is replaced.

    Args:
        url: of Redis.
        config: the file with the rules.
        folder: where the handlers write.
        count: how many.
    """

    def __init__(self, url: str, config: Path, folder: Path, count: int) -> None:
        self._command = [
            *(sys.executable, "-m", "presence", "followups", "run", "--redis", url, "--config", str(config)),
            *("--handler", "loadtest.followups.handler:handle", "--retry", str(RETRY_S)),
        ]
        self._environment = {**os.environ, FOLDER: str(folder)}
        self._running = [self._start() for _ in range(count)]

    def _start(self) -> "subprocess.Popen[bytes]":
        nowhere = subprocess.DEVNULL
        return subprocess.Popen(self._command, env=self._environment, stdin=nowhere, stderr=nowhere)

    def revive(self) -> None:
        """Replace those that have ended, as one does that starts while Redis is away."""
        self._running = [each if each.poll() is None else self._start() for each in self._running]

    def kill(self, number: int) -> None:
        """Kill one and start another in its place."""
        place = number % len(self._running)
        self._running[place].kill()
        self._running[place].wait()
        self._running[place] = self._start()

    def stop(self) -> None:
        """End all of them."""
        for each in self._running:
            each.terminate()
        for each in self._running:
            try:
                each.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()


class Stage:
    """The server, the Redis and the runners.

    Args:
        plan: what is played.
        folder: for files.
    """

    def __init__(self, plan: Plan, folder: Path, stack: contextlib.ExitStack) -> None:
        self._plan = plan
        self._config = folder / "presence.toml"
        self._config.write_text(f'[[followups]]\nname = "back"\nafter = {plan.after_s}\npayload = "x"\n')
        self.handled = folder / "handled"
        self.handled.mkdir()
        self.store = stack.enter_context(Data(keep=True))
        self.server = self._serve(0)
        stack.callback(lambda: self.server.stop())  # noqa: PLW0108 - of the server that there is then
        self.runners = Runners(self.store.url, self._config, self.handled, plan.runners)
        stack.callback(self.runners.stop)
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

    def told(self) -> Iterator[Told]:
        """Return the follow-ups that were told, in order."""
        begin = "-"
        while page := self.store.client.xrange(Keys().followups(0), begin, "+", count=PAGE):
            for entry_id, fields in page:
                yield Told(
                    id_order(entry_id.decode()),
                    fields[b"id"].decode(),
                    fields[b"uid"].decode(),
                    id_order((fields[b"offline_id"] or b"0-0").decode()),
                    int(fields[b"due_ms"]),
                    int(fields[b"at_ms"]),
                )
            begin = f"({page[-1][0].decode()}"


def play(plan: Plan, folder: Path, seed: int) -> Outcome:
    """Play it, and judge."""
    stayers = plan.users - plan.back
    with contextlib.ExitStack() as stack:
        stage = Stage(plan, folder, stack)
        loop = ClientLoop(stage.server.address, beat_s=0.4 * IDLE_S)
        stay = [Client(loop, f"stay-{number}") for number in range(stayers)]
        back = [Client(loop, f"back-{number}") for number in range(plan.back)]
        thread = stack.enter_context(LoopThread(loop))
        thread.bring([*stay, *back], 2000.0, LOGIN_TIMEOUT_S)
        time.sleep(1.0)
        say(f"followups: {plan.users:,} users are online; all go, {plan.back:,} come back in time")
        gone = time.monotonic()
        thread.do(lambda: _go(plan, loop, stay, back))
        _kill_until_told(plan, stage, random.Random(seed), gone, stayers)
        time.sleep(QUIET_S)
        told, events = [*stage.told()], stage.store.events(Keys())
        seconds, _ = stage.store.client.time()
        verdict = judge(
            events,
            told,
            after_ms=round(plan.after_s * 1000),
            late_max_ms=round(plan.late_max_s * 1000),
            now_ms=seconds * 1000,
        )
        outcome = Outcome(verdict, stage.kills, handled(stage.handled), told)
        outcome.broken = [*verdict.broken, *stage.server.failures(), *_by_name(stay, outcome)]
    return outcome


def _go(plan: Plan, loop: ClientLoop, stay: list[Client], back: list[Client]) -> None:
    """Let all go: by silence, by a logout, by a connection that breaks; the last are back in time."""
    for number, client in enumerate(stay):
        client.returns = client.beats = False
        if number % 2:
            client.send(protocol.encode(protocol.logout()))
    for client in back:
        client.drop(reset=True)
        away_s = random.uniform(0.2 * plan.after_s, 0.4 * plan.after_s)
        loop.at(time.monotonic() + away_s, client.connect)


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


def _by_name(stay: list[Client], outcome: Outcome) -> Iterator[str]:
    """Hold it against what the clients meant to do, too."""
    wanted, told = {client.uid for client in stay}, outcome.verdict.told
    times = Counter(each.uid for each in outcome.told)
    if wanted - told:
        yield f"{len(wanted - told)} who stayed away got none"
    if told - wanted:
        yield f"{len(told - wanted)} who came back got one: {sorted(told - wanted)[:3]}"
    if max(times.values(), default=0) > 1:
        yield f"{max(times.values())} follow-ups of one user"
    if {*outcome.handled} != {each.id for each in outcome.told}:
        yield "handled are others than told"
