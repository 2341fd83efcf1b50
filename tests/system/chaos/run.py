"""One run: storms and calms, and their outcome."""

import contextlib
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.outcome import print_progress
from loadtest.room_members import differences, recorded_members, stored_members
from loadtest.servers import wait_for
from loadtest.stream_events import StreamEvent
from loadtest.unguarded import GUARDS
from presence.client.reconnect import RECONNECT_MAX_S
from presence.common.errors import StoreError, StoreUnavailable
from presence.store.ban_table import BanTable
from presence.store.control_messages import BanNotice
from presence.store.error_classes import CONNECTION_LOST
from presence.store.records import online_state, status_of
from presence.store.redis_client import RedisError
from presence.watching.shard_watch import COMPARE_CYCLE_S
from tests.support.proxy import Proxy
from tests.system.chaos.bounds import HOLD_S, Troubles, settle_s
from tests.system.chaos.collector import Collector, Subscribers, lost_by_group
from tests.system.chaos.crowd import Address, Crowd, Habits
from tests.system.chaos.faults import Injector
from tests.system.chaos.judge import ChaosJudge
from tests.system.chaos.libraries import Libraries, build_programs, unseen
from tests.system.chaos.misreports import LATE_S, MISREPORTS, Misreporter
from tests.system.chaos.nodes import ChaosNode, Clustered, Plain, Watched
from tests.system.chaos.plan import ALL_PLACES, MIN_ACTING_S, ChaosFault, Place, Storm
from tests.system.chaos.report import SETTLE_TIMEOUT_S, ChaosResult, Options, measure
from tests.system.chaos.rooms import ROOM_FLAGS, ProjectorProcess, told_after
from tests.system.chaos.truth import DeviceLogin, Trouble, UserBan

JUDGE_INTERVAL_S = 1.0  # between two looks of the judge
JUDGE_LAG_S = 1.5  # by which it judges later than things happen, so that all is known
LOGINS_PER_S = 500.0
LOGIN_TIMEOUT_S = 10.0
STATUS_S = 1.0  # beyond a tick, until Redis has a status, or its end
BAN_S = (1.0, 6.0)  # how long users are banned
BAN_INTERVAL_S = 1.0
NO_SESSIONS: Mapping[str, Any] = {"sessions": ()}
AGREEMENT_TIMEOUT_S = 3.0  # to find a moment without a change
CONVERGED_POLL_S = 0.1
ROOMS_TIMEOUT_S = 8.0  # beyond a lease of a projector, and its back-off
RETURN_TIMEOUT_S = RECONNECT_MAX_S + 10.0  # until a client with a library has logged in again
SEEN_MARGIN_S = 5.0  # beyond two reads of a record: a keepalive interval of a quiet client, and a projector
LOGGED_PER_RULE = 5  # broken promises of a rule; the others are counted
LATE_SHARE = 0.05
GONE_S = 15.0  # in which those come back who stayed away for longer than a node's death takes


class Done(NamedTuple):
    """A fault that was carried out, its proof, the index of its first trouble, and the settle time."""

    fault: ChaosFault
    proof: str
    first: int
    settled_s: float | None


class ChaosRun:
    """A run in progress; for `play`."""

    def __init__(self, options: Options, stack: ExitStack, log: Callable[[str], None]) -> None:
        self._options = options
        self._log = log
        self._reported = 0
        self._rules: Counter[str] = Counter()
        self._setup = options.setup
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        programs = build_programs(options.languages, Path(folder))
        self.result = ChaosResult(options, time.monotonic())
        self._keys = self._setup.keys()
        self._data = _data_of(options)
        stack.callback(self._data.close)
        redis, path = self._data.url, None
        if isinstance(self._data, Plain):
            redis = self._data.target()
            path = stack.enter_context(Proxy(redis))
        program = ("-P", "-m", "presence")
        if options.guard in GUARDS:
            program = ("-m", "loadtest.unguarded", options.guard)
        flags = (*self._setup.flags, "--min-idle-timeout", "1", *(ROOM_FLAGS if options.has_rooms else ()))
        with ThreadPoolExecutor(options.nodes) as pool:
            futures = [
                pool.submit(ChaosNode, redis, flags, program, options.pythons) for _ in range(options.nodes)
            ]
            self._nodes = [future.result() for future in futures]
        for node in self._nodes:
            stack.callback(node.close)
        self._collector = Collector(self._data.client_of, self._keys)
        stack.callback(self._collector.close)
        self._subscribers = Subscribers(path.url if path else self._data.url)
        stack.callback(self._subscribers.close)
        self._troubles = Troubles()
        addresses = [each for place, node in enumerate(self._nodes) for each in node.addresses(place)]
        self._crowd = stack.enter_context(self._make_crowd(addresses))
        self._libraries = Libraries(
            programs, addresses, options.library_clients, self._crowd.users, self._crowd.rooms
        )
        stack.callback(self._libraries.close)
        self._judge = ChaosJudge(self._crowd.users, self._troubles, options.setup, self._libraries.uids)
        projector: ProjectorProcess | None = None
        if options.has_rooms:
            projector = ProjectorProcess(self._data.url)
            stack.callback(projector.close)
        self._injector = Injector(
            self._data, self._keys, self._nodes, path, self._collector, self._troubles, projector
        )
        self._misreporter: Misreporter | None = None
        if options.guard == MISREPORTS and not options.plan:
            self._misreporter = Misreporter(self._judge, self._crowd.users)
        self._events: list[StreamEvent] = []

    def _make_crowd(self, addresses: Sequence[Address]) -> Crowd:
        options, death_s = self._options, self._setup.node_down_s
        habits = Habits(
            self._setup,
            options.plan.gone_share if options.plan else 0.0,
            (death_s + 1.0, death_s + GONE_S),
            lambda uid, login, at, reason, is_for_good: self._judge.connection_lost(
                uid, login, at, reason, is_for_good=is_for_good
            ),
            self._login_granted,
            makes_requests=options.acts_fully,
            has_rooms=options.has_rooms,
        )
        return Crowd(addresses, options.clients, max(1, round(options.clients * LATE_SHARE)), habits)

    def _login_granted(self, uid: str, login: DeviceLogin) -> None:
        self._judge.login_granted(uid, login)  # the judge begins after the crowd

    def log_in_clients(self) -> None:
        count = self._options.clients
        self._crowd.log_in_all(LOGINS_PER_S)
        if not wait_for(
            lambda: len(self._crowd.live_sessions()) >= 0.9 * count, count / LOGINS_PER_S + LOGIN_TIMEOUT_S
        ):
            self.result.broken.append("the clients did not get in")
        self._libraries.log_in()

    @contextmanager
    def judging(self) -> Iterator["Future[None]"]:
        """Judge in a thread meanwhile; the future is done only if judging has failed."""
        is_over = threading.Event()

        def judge() -> None:
            while not is_over.wait(JUDGE_INTERVAL_S):
                self._judge_until_now()

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(judge)
            try:
                yield future
            finally:
                is_over.set()
                future.result()

    def _judge_until_now(self) -> None:
        now = time.monotonic() - JUDGE_LAG_S
        items = self._collector.take_until(now)
        if self._misreporter is not None:
            items = self._misreporter.alter(items, now)
        self._judge.judge_items(items, now)
        if self._options.plan:
            self._events += [each for each in items if isinstance(each, StreamEvent)]
        self._judge.check_users(now)
        for finding in self._judge.findings[self._reported :]:
            rule = finding.broken.rule
            if self._rules[rule] < LOGGED_PER_RULE:
                self._log(self.result.story(finding))
            self._rules[rule] += 1
        self._reported = len(self._judge.findings)

    @property
    def is_guard_missed(self) -> bool:
        """Whether a guard is off, and a promise was broken; of misreports, whether each was found."""
        if self._options.guard == MISREPORTS:
            return self._misreporter is not None and not self._misreporter.unfound()
        return bool(self._options.guard and self._judge.findings)

    def storm(self, storm: Storm) -> list[Done]:
        """Inject all faults of a storm, each at its moment; return what was done."""
        started = time.monotonic()
        self._crowd.set_acting(on=True)
        done: list[Done] = []
        is_over = threading.Event()

        def carry_out(fault: ChaosFault) -> None:
            time.sleep(max(0.0, started + fault.at - time.monotonic()))
            if not self.is_guard_missed:
                first = len(self._troubles.all)
                proof = self._injector.inject(fault)
                if proof:
                    self.result.injected[fault.kind] += 1
                    self.result.proofs[fault.kind] = proof
                done.append(Done(fault, proof, first, self._settled_s(fault)))

        with ThreadPoolExecutor(len(storm) + 1) as pool:
            futures: list[Future[None]] = [pool.submit(carry_out, fault) for fault in storm]
            if self._options.acts_fully:
                pool.submit(self._ban_users, is_over)
            try:
                for future in futures:
                    future.result()
            finally:
                is_over.set()  # also if a fault could not be carried out: the bans would never end
        storm_s = min(MIN_ACTING_S, self._options.storm_s) if self._options.plan else self._options.storm_s
        wait_for(lambda: self.is_guard_missed, max(0.0, started + storm_s - time.monotonic()))
        self._crowd.set_acting(on=False)
        return done

    def _ban_users(self, is_over: threading.Event) -> None:
        """Ban a random user now and then, for some seconds."""
        bans = BanTable(self._data.url, self._keys)

        def ban(uid: str) -> UserBan | None:
            seconds, began = random.uniform(*BAN_S), time.monotonic()
            try:
                bans.add([uid], None, seconds, "chaos", "chaos")
                bans.notify(self._data.records.nodes(self._keys), BanNotice("chaos", False, 1, (uid,)))
            except (StoreUnavailable, StoreError, RedisError, *CONNECTION_LOST):
                return None  # whether Redis has it is not known
            self.result.bans += 1
            return UserBan(time.monotonic(), began + seconds)

        while not is_over.wait(BAN_INTERVAL_S):
            self._crowd.ban(ban)
        bans.close()

    def _settled_s(self, fault: ChaosFault) -> float | None:
        """Wait until Redis is right after a fault of a plan; return the seconds, None for other faults."""
        if not self._options.plan or fault.kind.value.place not in {Place.REDIS, Place.PATH}:
            return None
        started = time.monotonic()
        wait_for(self._is_settled, SETTLE_TIMEOUT_S)
        return time.monotonic() - started

    def _is_settled(self) -> bool:
        setup, users = self._setup, self._crowd.users
        with contextlib.suppress(LookupError, RedisError, *CONNECTION_LOST):
            different = {*chain(*self._data.records.compare(self._keys, self._live_sessions()))}
            now = time.monotonic()
            silence_s = setup.idle_timeout + setup.tick + HOLD_S
            loss_s = setup.grace + setup.tick + 1.0
            return all(users[uid].is_changing(now, silence_s, loss_s) for uid in different)
        return False

    def measure(self, done: Sequence[Done]) -> None:
        """Measure what followed the faults of a plan, after the calm."""
        users = self._crowd.users.values()
        if self._options.guard == MISREPORTS:
            self._events = [each._replace(written_at=each.written_at + LATE_S) for each in self._events]
            done = [each._replace(settled_s=(each.settled_s or 0.0) + LATE_S) for each in done]
        for fault, proof, first, settled_s in done:
            troubles = [each for each in self._troubles.all[first:] if _belongs(each, fault)]
            row = measure(fault, proof, troubles, self._events, users, settled_s, self._setup)
            self.result.measured.append(row)
            self._log(f"{fault.kind.name.lower()}: {row.summary}")
        self._events.clear()

    def settle(self) -> None:
        """Wait until everything is at rest, and check that all agree."""
        started = time.monotonic()
        self._data.compact()
        if wait_for(self._is_equal, settle_s(self._setup), poll_s=CONVERGED_POLL_S):
            self.result.converged_s.append(time.monotonic() - started)
        time.sleep(max(0.0, started + self._options.calm_s - time.monotonic()))
        if not wait_for(self._is_equal, AGREEMENT_TIMEOUT_S, poll_s=CONVERGED_POLL_S):
            ghosts, missing = self._data.records.compare(self._keys, self._live_sessions())
            self._add_broken(f"Redis is not equal to the live sessions: {ghosts=} {missing=}")
        if not wait_for(lambda: not self._shown_difference(), AGREEMENT_TIMEOUT_S):
            self._add_broken(f"sessions are not shown as their clients say: {self._shown_difference()}")
        if not wait_for(lambda: not self._view_difference(), AGREEMENT_TIMEOUT_S):
            self._add_broken(f"the subscriber's view is not equal to Redis: {self._view_difference()}")

        if not wait_for(lambda: not self._room_differences(), ROOMS_TIMEOUT_S):
            self._add_broken(f"rooms are not right: {self._room_differences()[:LOGGED_PER_RULE]}")
        self.result.members_checked += sum(
            map(len, stored_members(self._data.client_of, self._keys).values())
        )
        self._settle_libraries()

    def _settle_libraries(self) -> None:
        """Wait until the clients with the libraries are back, and check what they see."""
        if lost := self._libraries.await_connected(RETURN_TIMEOUT_S):
            self._add_broken(f"not connected at rest: {lost}")
        compare = partial(unseen, self._data.client_of, self._keys)
        absence_s = self._setup.lease + self._setup.idle_timeout
        wrong = self._libraries.await_agreement(compare, COMPARE_CYCLE_S + absence_s + SEEN_MARGIN_S)
        if wrong:
            self._add_broken(f"{len(wrong)} things seen are not so: {wrong[:LOGGED_PER_RULE]}")

    def _room_differences(self) -> list[object]:
        """Return how the members of rooms differ from the records, and what the streams say from both."""
        if not self._options.has_rooms:
            return []
        stored = stored_members(self._data.client_of, self._keys)
        recorded = recorded_members(self._data.client_of, self._keys)
        # Users still come back in a calm, and the judge is late on purpose.
        untaken = self._collector.untaken_of_rooms()
        occupied, told = told_after(self._judge.rooms.snapshot(), untaken)
        different: list[object] = sorted(differences(stored, recorded), key=str)
        different += [
            (room, told.get(room), stored.get(room))
            for room in sorted({*stored, *told, *occupied})
            if told.get(room, frozenset()) != frozenset(stored.get(room, ()))
            or (room in occupied) != (room in stored)
        ]
        return different

    def _add_broken(self, text: str) -> None:
        self.result.broken.append(text)
        self._log(text)

    def _is_equal(self) -> bool:
        with contextlib.suppress(LookupError, RedisError, *CONNECTION_LOST):
            return not any(self._data.records.compare(self._keys, self._live_sessions()))
        return False

    def _live_sessions(self) -> dict[str, str]:
        return self._crowd.live_sessions() | self._libraries.live_sessions()

    def _shown_difference(self) -> set[tuple[str, str, str]]:
        """Return, of each session, the status on record and the one that its client wants."""
        wanted = self._crowd.shown(self._setup.tick + STATUS_S)
        statuses = self._libraries.statuses
        wanted |= {session: statuses[uid] for uid, session in self._libraries.live_sessions().items()}
        self.result.statuses_checked += len(wanted)
        found = {
            each["session"]: status_of(each)
            for shard in range(self._keys.shards)
            for key in [self._keys.online(shard)]
            for text in self._data.client_of(key).hvals(key)
            for each in (online_state(text) or NO_SESSIONS)["sessions"]
        }
        return {
            (session, found[session], status)
            for session, status in wanted.items()
            if found.get(session, status) != status
        }

    def _view_difference(self) -> set[str]:
        recorded = {
            uid.decode()
            for shard in range(self._keys.shards)
            for key in [self._keys.online(shard)]
            for uid in self._data.client_of(key).hkeys(key)
        }
        return recorded ^ self._subscribers.online

    def state(self) -> str:
        count = len(self._judge.findings) + len(self.result.broken) + len(self._subscribers.broken)
        equal = [f"{each:.1f} s" for each in self.result.converged_s[-1:]]
        return f"equal after {equal}; broken so far {count}"

    def finish(self) -> ChaosResult:
        """Judge once more, and collect the results."""
        result, judge, subscribers = self.result, self._judge, self._subscribers
        result.metrics["view, difference"] = len(self._view_difference())
        time.sleep(JUDGE_LAG_S)
        self._judge_until_now()
        given = dict(subscribers.ids)
        if self._misreporter is not None:
            del given[next(iter(given))]  # the oldest, which the group has had time for
        lost = lost_by_group(self._collector.ids, given, self._troubles.all, self._options.nodes)
        result.findings = judge.findings
        if self._misreporter is not None:
            result.unfound = self._misreporter.unfound() + ([] if lost else ["no entry lost by the group"])
        result.broken += subscribers.broken
        result.broken += [f"the group was never given {len(lost)} entries: {lost[:3]}"] if lost else []
        for place, node in enumerate(self._nodes):
            result.broken += [f"node {place}: {failure}" for failure in node.failures()]
        result.broken += self._libraries.stop()
        result.metrics |= {
            "clients": self._options.clients,
            "clients with a library": dict.fromkeys(self._options.languages, self._options.library_clients),
            "users, rooms and sessions seen by these, compared": self._libraries.compared,
            "seen by an event that Redis has lost": self._libraries.lost,
            "clients replaced by an earlier login of their own": self._libraries.replaced,
            "logins": self._crowd.logins,
            "logins over WebSocket": self._crowd.websocket_logins,
            "bans": result.bans,
            "statuses compared": result.statuses_checked,
            "members of rooms compared": result.members_checked,
            "entries of rooms by reason": dict(judge.room_reasons),
            "beats": self._crowd.keepalives,
            "deeds": dict(self._crowd.actions),
            "events": dict(judge.events),
            "looks at users": dict(judge.expected),
            "ends and goodbyes, for Redis went back": judge.lost_by_rollback,
            "view, snapshots": subscribers.snapshots,
            "group, entries": len(subscribers.ids),
            "group, given again": subscribers.redelivered,
            "group, gaps": subscribers.gaps,
        }
        return result


def _data_of(options: Options) -> Plain | Clustered | Watched:
    if options.plan and options.plan.has_sentinels:
        return Watched()
    replicas = options.plan.replicas if options.plan else None
    return Plain() if replicas is None else Clustered(replicas)


def _belongs(trouble: Trouble, fault: ChaosFault) -> bool:
    is_there = trouble.place == fault.place or fault.place == ALL_PLACES
    return trouble.kind is fault.kind and (is_there or fault.kind.value.place is Place.ALL_NODES)


def play(options: Options, log: Callable[[str], None] = print_progress) -> ChaosResult:
    storms = options.storms()
    with ExitStack() as stack:
        run = ChaosRun(options, stack, log)
        log(f"{options.nodes} nodes, {options.clients:,} clients, seed {options.seed}")
        run.log_in_clients()
        with run.judging() as judging:
            for number, storm in enumerate(storms, 1):
                done = run.storm(storm)
                if run.is_guard_missed or judging.done():
                    break
                run.settle()
                if options.plan:
                    run.measure(done)
                seconds = time.monotonic() - run.result.begun
                log(f"{seconds:.0f} s, round {number} of {len(storms)}: {len(storm)} faults; {run.state()}")
        return run.finish()
