"""``watch``: many who watch, while those whom they watch come, go and change, and servers and Redis fail.

With ``--tides`` most watchers leave and come back so many times. With few ``--channels`` this lets workers
follow shards as a whole, and by user again.
"""

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from loadtest.outcome import failed_checks, print_progress, spread_ms
from loadtest.scenario_report import LoadedServer, ScenarioReport, loaded_server
from loadtest.servers import PRESENCE, wait_for
from presence import protocol
from presence.loadtest.client_loop import NO_CONNECTION, ClientLoop, LoopClient
from presence.protocol import Kind
from presence.store.keys import Keys
from presence.store.redis_client import RedisError
from tests.system.channel import few_channels_server
from tests.system.channel.entries import ChannelEntry, by_user, read_entries
from tests.system.channel.watch_judge import AnsweredWatch, Lost, Pushed, TrueStates, Unwatched, judge

LOGIN_S = 30.0
QUIET_S = 3.0
MAX_STALE_MS = 2500.0
TWO_DEVICES = 5  # one in so many users has a second device
RESTLESS_EVERY = 10  # and one in so many watchers looks away, or loses the connection, now and then
PROOF_S = 15.0  # until a worker that was killed is replaced
AFTER_S = 5.0  # after Redis' return what waited for it is told; not as in calm
STATUS_TEXTS = ("at work", "im Zug", "おはよう", "")
VERSIONS = 40
FEW_CHANNELS_SERVER = ("-m", "tests.system.channel.few_channels_server")
RETRY_S = 0.5  # where the server names no time
EBB_S = few_channels_server.LINGER_S + 2.0  # for so long most watchers are away


@dataclass(frozen=True)
class WatchPlan:
    """The size of the run, its faults, and the server's settings."""

    watchers: int = 200
    each: int = 50  # users per watcher
    users: int = 1000  # who come, go and change
    seconds: float = 60.0
    workers: int = 3
    shards: int = 3
    rate: float = 250.0  # actions per second
    kills: int = 2  # of a worker
    restarts: int = 2  # of Redis
    away_s: float = 2.0  # how long Redis is down
    tides: int = 0  # times that most watchers leave and come back
    channels: int = 0  # of a worker, before it follows shards as a whole; 0: the server's own bound
    idle_s: float = 5.0
    lease_s: float = 2.0
    tick_s: float = 0.5
    grace_s: float = 1.0

    @property
    def flags(self) -> tuple[str, ...]:
        """Of `presence serve`."""
        return (
            *("--workers", str(self.workers), "--shards", str(self.shards), "--lease", f"{self.lease_s:g}"),
            *("--idle-timeout", f"{self.idle_s:g}", "--tick", f"{self.tick_s:g}"),
            *("--disconnect-grace", f"{self.grace_s:g}"),
        )

    @property
    def program(self) -> Sequence[str]:
        return (*FEW_CHANNELS_SERVER, str(self.channels)) if self.channels else PRESENCE

    @property
    def settle_s(self) -> float:
        """How long an event may still follow: the user fell silent on a dead node."""
        return self.lease_s + self.idle_s + self.tick_s + self.grace_s + QUIET_S


class Person(LoopClient):
    """A watched user: each `act` is an action of a device. Pauses depend on the server's `grace_s`."""

    def __init__(self, loop: ClientLoop, uid: str, device: str, rng: random.Random, grace_s: float) -> None:
        super().__init__(loop, uid, device)
        self.reconnects = False
        self._random = rng
        self._grace_s = grace_s
        self._is_away = False
        self._actions: dict[Callable[[], object], int] = {
            self._log_out: 16,
            self._disconnect: 8,
            self._move: 10,
            self._fall_silent: 4,
            self._toggle_away: 27,
            self._update_meta: 35,
        }

    def act(self) -> None:
        """Take a random action that is possible now."""
        if self.fd == NO_CONNECTION:
            self._is_away, self.sends_keepalives = False, True
            self.meta = self._random_meta() if self._random.random() < 0.6 else None
            self.connect()
        elif self.is_logged_in and self.sends_keepalives:
            self._random.choices([*self._actions], [*self._actions.values()])[0]()

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        """Reconnect half of the times if the server broke the connection; else an offline event follows."""
        if payload is None and self.sends_keepalives and self._random.random() < 0.5:
            self.loop.call_at(now + self._random.uniform(0.0, 1.5), self.connect)

    def _log_out(self) -> None:
        self.sends_keepalives = False
        self.send(protocol.encode(protocol.logout(self._random.choice(("logout", "background")))))

    def _disconnect(self) -> None:
        self.close(reset=self._random.random() < 0.5)

    def _move(self) -> None:
        self._disconnect()
        self.loop.call_at(time.monotonic() + self._random.uniform(0.0, 0.6 * self._grace_s), self.connect)

    def _fall_silent(self) -> None:
        self.sends_keepalives = False

    def _toggle_away(self) -> None:
        self._is_away = not self._is_away
        self.send(protocol.encode(protocol.update(status="away" if self._is_away else "online")))

    def _update_meta(self) -> None:
        meta = {} if self._random.random() < 0.1 else self._random_meta()
        self.send(protocol.encode(protocol.update(meta=meta)))

    def _random_meta(self) -> dict[str, Any]:
        found: dict[str, Any] = {"app": f"4.{self._random.randrange(VERSIONS)}", "dev": self.device}
        if text := self._random.choice(STATUS_TEXTS):
            found["text"] = text
        return found


class Watcher(LoopClient):
    """A watcher that records what it receives.

    Attributes:
        history: for the judge.
        refused: refused watches by code; they are requested again.
    """

    def __init__(self, loop: ClientLoop, uid: str, uids: Sequence[str]) -> None:
        super().__init__(loop, uid)
        self.history: list[AnsweredWatch | Pushed | Unwatched | Lost] = []
        self.refused: Counter[int] = Counter()
        self._uids = uids
        self._requests: dict[int, tuple[float, Sequence[str], bool]] = {}
        self._ids = itertools.count(100)

    @property
    def is_answered(self) -> bool:
        """Whether it is logged in, and each request is answered."""
        return self.is_logged_in and not self._requests

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        self._send_request(self._uids, watch=True)

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        at_ms = self.loop.unix_ms(now)
        if kind == Kind.PRESENCE:
            self.history.append(Pushed(at_ms, payload["uid"], payload))
        elif id in self._requests:
            asked_ms, uids, watch = self._requests.pop(id)
            if kind == Kind.ERROR:
                self.refused[payload["code"]] += 1
                self._retry(now + payload.get("retry_after", RETRY_S), uids, watch=watch)
            elif watch:
                self.history.append(AnsweredWatch(asked_ms, at_ms, uids, payload["presence"]))
            else:
                self.history.append(Unwatched(uids))
        else:
            raise AssertionError(f"not asked for: {kind} {id} {payload}")

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        """All watches have ended."""
        self._requests.clear()
        self.history.append(Lost())

    def reconnect(self, away_s: float = 1.0) -> None:
        """Drop the connection, and reconnect after at most so long."""
        if self.is_logged_in:
            now = time.monotonic()
            self.close(reset=True)
            self.on_disconnect(None, now)
            self.loop.call_at(now + random.uniform(away_s - 1.0, away_s), self.connect)

    def watch_again(self) -> None:
        """Unwatch half of the users, and watch them again."""
        if self.is_answered:
            some = random.sample(self._uids, len(self._uids) // 2)
            self._send_request(some, watch=False)
            self._send_request(some, watch=True)

    def _send_request(self, uids: Sequence[str], *, watch: bool) -> None:
        id = next(self._ids)
        self._requests[id] = (self.loop.unix_ms(time.monotonic()), uids, watch)
        self.send(protocol.encode((protocol.watch if watch else protocol.unwatch)(uids, id=id)))

    def _retry(self, moment: float, uids: Sequence[str], *, watch: bool) -> None:
        fd = self.fd

        def ask() -> None:
            if self.is_logged_in and self.fd == fd:  # a new connection has asked for all
                self._send_request(uids, watch=watch)

        self.loop.call_at(moment, ask)


class WatchRun:
    """One run.

    Attributes:
        proofs: of each fault, that it took place.
        failed: faults that did not.
    """

    def __init__(self, plan: WatchPlan, seed: int, stage: LoadedServer) -> None:
        self._plan, self._stage, self._loop = plan, stage, stage.loop
        self._random = random.Random(seed)
        self._keys = Keys(shards=plan.shards)
        uids = [f"user-{number}" for number in range(plan.users)]
        self._people = [
            Person(stage.loop, uid, device, self._random, plan.grace_s)
            for number, uid in enumerate(uids)
            for device in (("", "pad") if number % TWO_DEVICES == 0 else ("",))
        ]
        self.watchers = [
            Watcher(stage.loop, f"watcher-{number}", self._random.sample(uids, plan.each))
            for number in range(plan.watchers)
        ]
        self.proofs: Counter[str] = Counter()
        self.failed: list[str] = []
        self._outages_ms: list[tuple[float, float]] = []  # when Redis was away or had just come back
        self._is_acting = False

    def run(self) -> None:
        loop, plan = self._loop, self._plan
        loop.log_in(self.watchers, LOGIN_S, is_ready=lambda watcher: watcher.is_answered)
        self._is_acting = True
        self._act_next()
        self._disturb_watcher()
        for tide in range(plan.tides):
            loop.call_at(time.monotonic() + (tide + 0.5) * plan.seconds / plan.tides, self._ebb)
        injecting = threading.Thread(target=self._inject, daemon=True)  # the clients go on
        injecting.start()
        loop.run(plan.seconds)
        loop.run(PROOF_S, lambda: not injecting.is_alive())
        self._is_acting = False
        print_progress("watch: waiting until all is quiet")
        loop.run(plan.settle_s)
        before = -1
        while (entries := len(self.entries())) != before:
            before = entries
            loop.run(QUIET_S)

    def entries(self) -> list[ChannelEntry]:
        """Return the entries of the watched users."""
        found = read_entries(self._stage.data.events(self._keys))
        return [entry for entry in found if entry.uid.startswith("user-")]

    def _inject(self) -> None:
        """Kill workers and Redis alternately, spread over the run."""
        plan = self._plan
        turns = zip_longest([self._kill_worker] * plan.kills, [self._restart_redis] * plan.restarts)
        kinds = [kind for turn in turns for kind in turn if kind]
        for kind in kinds:
            time.sleep(plan.seconds / (len(kinds) + 1))
            kind()
            print_progress(f"watch: {dict(self.proofs)}")

    def _kill_worker(self) -> None:
        server = self._stage.server
        number, pid = random.choice(sorted(server.workers().items()))
        os.kill(pid, signal.SIGKILL)
        if wait_for(lambda: server.workers()[number] != pid, PROOF_S):
            self.proofs["worker killed (kill -9) and replaced"] += 1
        else:
            self.failed.append("a killed worker was not replaced")

    def _restart_redis(self) -> None:
        plan, data, started = self._plan, self._stage.data, time.time() * 1000
        before = data.client.info("server")["run_id"]
        data.kill()
        time.sleep(plan.away_s)
        data.start()
        self._outages_ms.append((started, (time.time() + AFTER_S) * 1000))
        if data.client.info("server")["run_id"] != before:
            self.proofs[f"Redis killed for {plan.away_s:g} s, and back with its data"] += 1
        else:
            self.failed.append("Redis did not restart")

    def _act_next(self) -> None:
        if self._is_acting:
            self._random.choice(self._people).act()
            self._loop.call_at(time.monotonic() + self._random.expovariate(self._plan.rate), self._act_next)

    def _disturb_watcher(self) -> None:
        """Let a restless watcher reconnect, or watch again."""
        if self._is_acting:
            watcher = self._random.choice(self.watchers[::RESTLESS_EVERY])
            self._random.choice((watcher.reconnect, watcher.watch_again))()
            self._loop.call_at(time.monotonic() + self._random.uniform(0.0, 0.5), self._disturb_watcher)

    def _ebb(self) -> None:
        """Let all watchers leave but the restless, and come back; see what that does to subscriptions."""
        followed = self._count_followed()
        for number, watcher in enumerate(self.watchers):
            if number % RESTLESS_EVERY:
                watcher.reconnect(EBB_S + 1.0)

        def look() -> None:
            self.proofs["a worker followed a shard as a whole, and by user again"] += max(
                0, followed - self._count_followed()
            )

        self._loop.call_at(time.monotonic() + EBB_S, look)

    def _count_followed(self) -> int:
        """Return how many subscriptions to whole shards there are; 0 if Redis is away."""
        channels = [self._keys.changes_channel(shard) for shard in range(self._plan.shards)]
        try:
            found = self._stage.data.client.pubsub_numsub(*channels)
        except (RedisError, OSError):
            return 0
        return sum(count for _, count in found)

    def report(self) -> ScenarioReport:
        plan, entries = self._plan, self.entries()
        histories = {each.uid: each.history for each in self.watchers}
        verdict = judge(histories, TrueStates(by_user(entries)))
        types = Counter(entry.fields["type"] for entry in entries)
        refused = sum((each.refused for each in self.watchers), Counter[int]())
        in_calm = [
            delay
            for stood_ms, delay in verdict.decided_ms
            if not any(started <= stood_ms <= end for started, end in self._outages_ms)
        ]
        stale_ms = max(verdict.stale_ms, default=0.0)
        unanswered = sum(not each.is_answered for each in self.watchers)
        report = ScenarioReport(
            f"watch: {plan.watchers} watchers of {plan.each} users each, {plan.users:,} users, "
            f"{plan.workers} workers, {plan.shards} shards"
        )
        report.rows = {
            "transitions": f"{len(entries):,}: {dict(types)}",
            "injected": "; ".join(f"{count} x {what}" for what, count in self.proofs.items()) or "nothing",
            "pushes that were right": f"{verdict.pushes:,}",
            "states in answers that were right": f"{verdict.answers:,}",
            "from the decision to the push": spread_ms(delay / 1000 for _, delay in verdict.decided_ms),
            "the same, but for Redis' outages": spread_ms(delay / 1000 for delay in in_calm),
            "answers over when asked for, by": spread_ms(delay / 1000 for delay in verdict.stale_ms),
            "watches refused and asked again": f"{refused.total():,} {dict(refused) if refused else ''}",
            "the load itself": self._loop.describe_load(),
        }
        report.metrics = {"transitions": len(entries), "pushes": verdict.pushes, "injected": self.proofs}
        report.broken = [
            *verdict.broken,
            *self.failed,
            *self._stage.server.failures(),
            *failed_checks(
                (stale_ms > MAX_STALE_MS, f"an answer was over by {stale_ms:,.0f} ms when asked for"),
                (not self.proofs and plan.kills + plan.restarts, "nothing was injected"),
                (unanswered, f"{unanswered} watchers have no answer in the end"),
            ),
        ]
        return report


def watch(plan: WatchPlan, seed: int) -> ScenarioReport:
    with loaded_server(*plan.flags, beat_s=0.4 * plan.idle_s, keep=True, program=plan.program) as stage:
        play = WatchRun(plan, seed, stage)
        play.run()
        return play.report()
