"""One run: storms and calms, and what came of them."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import NamedTuple

from loadtest.events import StreamEvent
from loadtest.outcome import say
from loadtest.servers import wait_for
from presence.store.client import RedisError
from presence.store.error_classes import CONNECTION_LOST
from tests.support.proxy import Proxy
from tests.system.chaos.bounds import HOLD_S, Troubles, rest_s
from tests.system.chaos.collector import Collector, Subscribers, lost_by_group
from tests.system.chaos.crowd import Crowd, Habits
from tests.system.chaos.faults import Injector
from tests.system.chaos.judge import ChaosJudge
from tests.system.chaos.nodes import ChaosNode, Clustered, Plain
from tests.system.chaos.plan import EVERYWHERE, STORY_S, ChaosFault, Place, Storm
from tests.system.chaos.report import SETTLED_LIMIT_S, ChaosResult, Options, measure
from tests.system.chaos.truth import Trouble

LOOK_S = 1.0  # between two looks of the judge
BEHIND_S = 1.5  # by which it judges later than things happen, so that all is known
LOGINS_A_SECOND = 500.0
ENTRY_S = 10.0
AGREE_S = 3.0  # in which a moment is found at which nobody comes or goes
EQUAL_LOOK_S = 0.1
TOLD_AT_ONCE = 5  # broken promises of a rule; the others are counted
NEAR_SHARE = 0.05
GONE_S = 15.0  # in which those come back who stayed away for longer than a node's death takes


class Done(NamedTuple):
    """A fault that was carried out: with which proof, from which trouble on, and Redis was right when."""

    fault: ChaosFault
    proof: str
    first: int
    settled_s: float | None


class ChaosRun:
    """A run while it goes on; for `play`."""

    def __init__(self, options: Options, stack: ExitStack, tell: Callable[[str], None]) -> None:
        self._options = options
        self._tell = tell
        self._said = 0
        self._rules: Counter[str] = Counter()
        self._setup = options.setup
        self.result = ChaosResult(options, time.monotonic())
        self._keys = self._setup.keys()
        replicas = options.plan.replicas if options.plan else None
        self._data: Plain | Clustered = Plain() if replicas is None else Clustered(replicas)
        stack.callback(self._data.close)
        redis, path = self._data.url, None
        if isinstance(self._data, Plain):
            redis = self._data.target()
            path = stack.enter_context(Proxy(redis))
        program = ("-m", "loadtest.unguarded", options.guard) if options.guard else ("-m", "presence")
        flags = (*self._setup.flags, "--min-idle-timeout", "1")
        with ThreadPoolExecutor(options.nodes) as pool:
            futures = [pool.submit(ChaosNode, redis, flags, program) for _ in range(options.nodes)]
            self._nodes = [future.result() for future in futures]
        for node in self._nodes:
            stack.callback(node.close)
        self._collector = Collector(self._data.client_of, self._keys)
        stack.callback(self._collector.close)
        self._subscribers = Subscribers(path.url if path else self._data.url)
        stack.callback(self._subscribers.close)
        self._troubles = Troubles()
        self._crowd = stack.enter_context(self._make_crowd())
        self._judge = ChaosJudge(self._crowd.users, self._troubles, options.setup)
        self._injector = Injector(self._data, self._keys, self._nodes, path, self._collector, self._troubles)
        self._events: list[StreamEvent] = []

    def _make_crowd(self) -> Crowd:
        options, death_s = self._options, self._setup.death_s
        habits = Habits(
            self._setup,
            options.plan.gone_share if options.plan else 0.0,
            (death_s + 1.0, death_s + GONE_S),
            lambda uid, login, at, reason, is_for_good: self._judge.ended(
                uid, login, at, reason, is_for_good=is_for_good
            ),
        )
        addresses = [each for place, node in enumerate(self._nodes) for each in node.addresses(place)]
        return Crowd(addresses, options.clients, max(1, round(options.clients * NEAR_SHARE)), habits)

    def enter(self) -> None:
        """Let all clients log in."""
        count = self._options.clients
        self._crowd.bring_all(LOGINS_A_SECOND)
        if not wait_for(lambda: len(self._crowd.live()) >= 0.9 * count, count / LOGINS_A_SECOND + ENTRY_S):
            self.result.broken.append("the clients did not get in")

    @contextmanager
    def judging(self) -> Iterator["Future[None]"]:
        """Judge while it goes on; what is given is done only if judging has failed."""
        is_over = threading.Event()

        def judge() -> None:
            while not is_over.wait(LOOK_S):
                self._look()

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(judge)
            try:
                yield future
            finally:
                is_over.set()
                future.result()

    def _look(self) -> None:
        now = time.monotonic() - BEHIND_S
        told = self._collector.take(now)
        self._judge.take(told, now)
        if self._options.plan:
            self._events += [each for each in told if isinstance(each, StreamEvent)]
        self._judge.look(now)
        for finding in self._judge.findings[self._said :]:
            rule = finding.broken.rule
            if self._rules[rule] < TOLD_AT_ONCE:
                self._tell(self.result.story(finding))
            self._rules[rule] += 1
        self._said = len(self._judge.findings)

    @property
    def is_found(self) -> bool:
        """Whether a guard is off, and that was found."""
        return bool(self._options.guard and self._judge.findings)

    def storm(self, storm: Storm) -> list[Done]:
        """Let all its faults happen, each at its moment; return what was done."""
        begun = time.monotonic()
        self._crowd.act(on=True)
        done: list[Done] = []

        def carry_out(fault: ChaosFault) -> None:
            time.sleep(max(0.0, begun + fault.at - time.monotonic()))
            if not self.is_found:
                first = len(self._troubles.all)
                proof = self._injector.carry_out(fault)
                if proof:
                    self.result.injected[fault.kind] += 1
                    self.result.proofs[fault.kind] = proof
                done.append(Done(fault, proof, first, self._settled_s(fault)))

        with ThreadPoolExecutor(len(storm)) as pool:
            futures: list[Future[None]] = [pool.submit(carry_out, fault) for fault in storm]
            for future in futures:
                future.result()
        storm_s = min(STORY_S, self._options.storm_s) if self._options.plan else self._options.storm_s
        time.sleep(max(0.0, begun + storm_s - time.monotonic()) if not self.is_found else 0.0)
        self._crowd.act(on=False)
        return done

    def _settled_s(self, fault: ChaosFault) -> float | None:
        """Of a fault of a plan that was done to Redis: wait until that is right; return the seconds."""
        if not self._options.plan or fault.kind.value.place not in {Place.REDIS, Place.PATH}:
            return None
        begun = time.monotonic()
        wait_for(self._is_settled, SETTLED_LIMIT_S)
        return time.monotonic() - begun

    def _is_settled(self) -> bool:
        setup, users = self._setup, self._crowd.users
        with contextlib.suppress(LookupError, RedisError, *CONNECTION_LOST):
            different = {*chain(*self._data.records.compare(self._keys, self._crowd.live()))}
            now = time.monotonic()
            silence_s = setup.idle_timeout + setup.tick + HOLD_S
            loss_s = setup.grace + setup.tick + 1.0
            return all(users[uid].is_changing(now, silence_s, loss_s) for uid in different)
        return False

    def measure(self, done: Sequence[Done]) -> None:
        """Count what followed the faults of a plan, when all is over."""
        users = self._crowd.users.values()
        for fault, proof, first, settled_s in done:
            troubles = [each for each in self._troubles.all[first:] if _belongs(each, fault)]
            row = measure(fault, proof, troubles, self._events, users, settled_s, self._setup)
            self.result.measured.append(row)
            self._tell(f"{fault.kind.name.lower()}: {row.figures}")
        self._events.clear()

    def calm(self) -> None:
        """Wait until everything is at rest, and see that all agree."""
        begun = time.monotonic()
        self._data.compact()
        if wait_for(self._is_equal, rest_s(self._setup), look_s=EQUAL_LOOK_S):
            self.result.equal_s.append(time.monotonic() - begun)
        time.sleep(max(0.0, begun + self._options.calm_s - time.monotonic()))
        if not wait_for(self._is_equal, AGREE_S, look_s=EQUAL_LOOK_S):
            ghosts, missing = self._data.records.compare(self._keys, self._crowd.live())
            self._break(f"Redis is not equal to the live sessions: {ghosts=} {missing=}")
        if not wait_for(lambda: not self._view_difference(), AGREE_S):
            self._break(f"the subscriber's view is not equal to Redis: {self._view_difference()}")

    def _break(self, text: str) -> None:
        self.result.broken.append(text)
        self._tell(text)

    def _is_equal(self) -> bool:
        with contextlib.suppress(LookupError, RedisError, *CONNECTION_LOST):
            return not any(self._data.records.compare(self._keys, self._crowd.live()))
        return False

    def _view_difference(self) -> set[str]:
        recorded = {
            uid.decode()
            for shard in range(self._keys.shards)
            for key in [self._keys.online(shard)]
            for uid in self._data.client_of(key).hkeys(key)
        }
        return recorded ^ self._subscribers.online

    def state(self) -> str:
        """Return how it stands, in words."""
        count = len(self._judge.findings) + len(self.result.broken) + len(self._subscribers.broken)
        equal = [f"{each:.1f} s" for each in self.result.equal_s[-1:]]
        return f"equal after {equal}; broken so far {count}"

    def finish(self) -> ChaosResult:
        """All is over: look once more, and count."""
        result, judge, subscribers = self.result, self._judge, self._subscribers
        result.figures["view, difference"] = len(self._view_difference())
        time.sleep(BEHIND_S)
        self._look()
        lost = lost_by_group(self._collector.ids, subscribers.ids, self._troubles.all, self._options.nodes)
        result.findings = judge.findings
        result.broken += subscribers.broken
        result.broken += [f"the group was never given {len(lost)} entries: {lost[:3]}"] if lost else []
        for place, node in enumerate(self._nodes):
            result.broken += [f"node {place}: {failure}" for failure in node.failures()]
        result.figures |= {
            "clients": self._options.clients,
            "logins": self._crowd.logins,
            "beats": self._crowd.beats,
            "deeds": dict(self._crowd.deeds),
            "events": dict(judge.events),
            "looks at users": dict(judge.certain),
            "ends and goodbyes, for Redis went back": judge.forgotten,
            "view, snapshots": subscribers.snapshots,
            "group, entries": len(subscribers.ids),
            "group, given again": subscribers.again,
            "group, gaps": subscribers.gaps,
        }
        return result


def _belongs(trouble: Trouble, fault: ChaosFault) -> bool:
    is_there = trouble.place == fault.place or fault.place == EVERYWHERE
    return trouble.kind is fault.kind and (is_there or fault.kind.value.place is Place.ALL_NODES)


def play(options: Options, tell: Callable[[str], None] = say) -> ChaosResult:
    """Carry a run out."""
    storms = options.storms()
    with ExitStack() as stack:
        run = ChaosRun(options, stack, tell)
        tell(f"{options.nodes} nodes, {options.clients:,} clients, seed {options.seed}")
        run.enter()
        with run.judging() as judging:
            for number, storm in enumerate(storms, 1):
                done = run.storm(storm)
                if run.is_found or judging.done():
                    break
                run.calm()
                if options.plan:
                    run.measure(done)
                seconds = time.monotonic() - run.result.begun
                tell(f"{seconds:.0f} s, round {number} of {len(storms)}: {len(storm)} faults; {run.state()}")
        return run.finish()
