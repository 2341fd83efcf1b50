"""Nodes among themselves: this one's lease, and what is done about those that have died.

One task. At each beat, and only from a healthy loop, it renews the lease and sees all others'. A node whose
counter has stood still for

* the lease: is fenced in each shard, which refuses whatever it still writes. If it lives it notices, takes a
  new id and registers its sessions under that;
* lease + T: gets a death certificate, which refuses its renewals and names the one that sweeps;
* and T after its fence was seen in a shard: is swept there. What its id still owns ends as `node_down`, in
  bounded calls with pauses between them. Who came back has a session under another id, and is passed over.

A sweeper advances the certificate while it works. If that stops, another takes over by the same observation.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from typing import Any, Final

import structlog

from presence.cluster.failure_detector import NEVER_RENEWED, ContactClock, FailureDetector, PeerNode
from presence.cluster.leases import LeaseRow, LeaseTable
from presence.common.circuit_breaker import BACKOFF_FIRST_S, BACKOFF_LIMIT_S
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.histogram import LatencyHistograms
from presence.common.runtime import Runtime, TimedCaller, TrioRuntime
from presence.outbox.outage_log import Outage
from presence.outbox.relay import Relay
from presence.outbox.replies import Reply, ReplyStatus
from presence.outbox.shard_writer import ShardWriter
from presence.outbox.steps import Fencing, Step
from presence.outbox.store import Store

BEATS_A_LEASE: Final = 8  # a death is noticed later by at most one beat
HEALTH_LOOK_S: Final = 0.02  # after a pause: until connections were read and a tick was made
SWEEP_PAUSE_S: Final = 0.010  # between two calls, and at least as long as a call took: others come first
FENCES_A_CALL: Final = 64  # some milliseconds of Redis: many nodes at once must not delay a beat

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class ClusterStatistics:
    """Counters since the start, and how things stand."""

    renewals: int = 0  # of this node's lease
    renewed_at: float | None = None  # monotonic seconds of the last one; None before the first
    nodes: int = 0  # other nodes seen, the dead ones included
    fenced: int = 0  # nodes that this one has fenced
    certificates: int = 0  # death certificates that it has written, take-overs included
    swept: int = 0  # nodes that it has swept to the end
    swept_sessions: int = 0  # sessions that it has ended so
    errors: int = 0  # calls that failed
    last_error: str = ""  # the last one's text; "" if there was none


@dataclass(eq=False, repr=False)
class Membership:
    """This node's part in watching over all."""

    relay: Relay  # knows this node's id and how it stands to each shard
    table: LeaseTable  # the leases
    store: Store  # for fences and sweeps; another connection than the relay's
    _: KW_ONLY
    lease_s: InitVar[float]  # see the module
    idle_timeout_s: InitVar[float]  # T
    # whether connections are read and the tick runs; the lease of a node that hangs must end
    healthy: Callable[[], bool]
    # what this node tells of itself, for `presence nodes`; JSON values
    describe: Callable[[], dict[str, Any]]
    clock: Callable[[], float] = time.monotonic  # monotonic seconds
    runtime: Runtime = field(default_factory=TrioRuntime)  # where its task runs
    delays: InitVar[LatencyHistograms | None] = None  # takes how long calls take

    def __post_init__(self, lease_s: float, idle_timeout_s: float, delays: LatencyHistograms | None) -> None:
        self._beat_s = lease_s / BEATS_A_LEASE
        self._lease_ms = round(lease_s * 1000)
        self._thread = TimedCaller(
            self.runtime.caller(self._interrupt), (delays or LatencyHistograms()).redis_call, self.clock
        )
        self._bell = self.runtime.bell()
        self._contact = ContactClock(2 * self._beat_s)
        self.observer = FailureDetector(lease_s, idle_timeout_s, self._contact)
        self._next_beat = -math.inf
        self._leaves_at_ms = self._left_behind = 0  # once it leaves
        self._has_left = self.runtime.bell()
        # That Redis is away the relay says, which cannot do without it either.
        self._outage = Outage(
            _log, away="", refused="Redis refused", back="", first_s=BACKOFF_FIRST_S, limit_s=BACKOFF_LIMIT_S
        )
        self._counted = ClusterStatistics()

    async def start(self) -> None:
        """Enter the table of leases.

        Raises:
            StoreUnavailable, StoreError: Redis cannot be reached, or refused.
        """
        await self._beat()

    async def run(self) -> None:
        """Renew and watch for ever; cancel it to stop."""
        while True:
            if not self.healthy():
                await self.runtime.sleep(HEALTH_LOOK_S)
                continue
            try:
                if self._leaves_at_ms:
                    await self._leave()
                    return
                await self._beat()
                await self._act()
            except (StoreUnavailable, StoreError) as error:
                await self._pause(error)
            else:
                self._outage.worked("beat")
                due_s = min(self._next_beat - self.clock(), self.observer.next_due_s())
                await self._bell.wait(due_s)

    async def leave(self, at_ms: int, sessions: int, timeout_s: float) -> None:
        """Tell the others that this node has drained and ends: its silence is no death. `run` returns.

        Args:
            at_ms: when, in Unix milliseconds.
            sessions: those that it had when it began to drain, some of which may be elsewhere by now.
            timeout_s: for Redis; later it ends without a mark, as a node that dies.
        """
        self._leaves_at_ms, self._left_behind = at_ms, sessions
        self._next_beat = -math.inf  # which ends a sweep after its next call
        self._bell.ring()
        await self._has_left.wait(timeout_s)

    async def _leave(self) -> None:
        me = self.relay.node
        if await self._beat():
            row = LeaseRow(str(self._counted.renewals), str(self._counted.renewals))
            left = row.left_at(self._leaves_at_ms)
            await self._thread.call(lambda: self.table.claim(me, row.text, left.text))
        self._has_left.ring()

    def hurry(self) -> None:
        """Beat at once: this node has another id."""
        self._bell.ring()

    def is_alive(self, node: str) -> bool:
        """Whether another node may be at work."""
        return self.observer.is_alive(node)

    def known(self) -> set[str]:
        """Return the other nodes that hold a lease."""
        return self.observer.leased() - self.relay.former

    async def _beat(self) -> bool:
        """Renew the lease; False: this id was declared dead."""
        me = self.relay.node
        self._counted.renewals += 1
        told = self.describe()
        if self._leaves_at_ms:
            told |= {"left_ms": self._leaves_at_ms, "sessions": self._left_behind}
        counter, stats = self._counted.renewals, json.dumps(told)
        sweeping = self._sweeping(me)
        self._next_beat = self.clock() + self._beat_s
        rows = await self._thread.call(lambda: self.table.renew(me, counter, stats, sweeping))
        if rows is None:
            self.relay.disown(me)
            self._bell.ring()  # the new id is to be seen at once
            return False
        self._counted.renewed_at = self.clock()
        self._contact.made(self._counted.renewed_at)
        traced = {node for writer in self.relay.writers for node in writer.settling.others}
        self.observer.saw(rows, traced, self.relay.node)
        return True

    def _sweeping(self, me: str) -> list[str]:
        return [each.node for each in self.observer.watched.values() if each.row and each.row.sweeper == me]

    async def _act(self) -> None:
        """Do what is due about silent nodes, until the next beat is."""
        if not self.observer.may_act():
            return
        lapsed = self.observer.lapsed()
        await self._fence(lapsed)
        mine = []
        for each in filter(self.observer.is_dead, lapsed):
            if self.clock() >= self._next_beat:
                return
            if await self._is_mine(each):
                mine.append(each)
        await self._sweep(mine)

    async def _fence(self, lapsed: Sequence[PeerNode]) -> None:
        """Fence nodes wherever that was not seen to be done."""
        now, steps = self.clock(), []
        by_id = {each.node: each for each in lapsed}
        for each in lapsed:
            writers = [w for w in self._reachable() if w.shard not in each.shards and w.is_settled(now)]
            steps += [writer.fencing(each.node) for writer in writers]

        def note(step: Step, reply: Reply) -> None:
            if isinstance(step, Fencing) and reply.status is ReplyStatus.OK:
                silent = by_id[step.other]
                if not silent.shards:
                    self._counted.fenced += 1
                    if silent.has_left:
                        _log.info("lease of departed node expired", peer=silent.node)
                    else:
                        _log.warning("node lease expired, fencing it", peer=silent.node)
                self.observer.fenced(silent, step.shard)

        for first in range(0, len(steps), FENCES_A_CALL):
            if first and self.clock() >= self._next_beat:
                return
            await self._perform(steps[first : first + FENCES_A_CALL], note)

    async def _is_mine(self, each: PeerNode) -> bool:
        """Whether this node is the one to sweep a dead one: by certificate, by take-over, or already."""
        me, row = self.relay.node, each.row
        if row and row.sweeper == me:
            return True
        if row and row.sweeper and not self.observer.is_orphan(each):
            return False
        if not self._can_sweep(each):
            return False  # a certificate in the hands of one who has to wait would keep all others from it
        wanted = (row or LeaseRow("", NEVER_RENEWED)).claimed_by(me)
        if not await self._thread.call(lambda: self.table.claim(each.node, each.text, wanted.text)):
            return False
        self._counted.certificates += 1
        before = row.sweeper if row else ""
        if before:
            each.ended = None
        if each.has_left:
            _log.info("sweeping sessions of departed node", peer=each.node, previous_sweeper=before)
        else:
            _log.warning("node declared dead, sweeping its sessions", peer=each.node, previous_sweeper=before)
        self.observer.claimed(each, wanted)
        return True

    def _can_sweep(self, each: PeerNode) -> bool:
        """Whether this node has seen the other fenced wherever it can, and no resync is in its way."""
        now, writers = self.clock(), self._reachable()
        return bool(writers) and all(w.shard in each.shards and w.is_settled(now) for w in writers)

    def _reachable(self) -> list[ShardWriter]:
        """Return the writers of the shards that answer: one that is away keeps no other from being swept."""
        return [writer for writer in self.relay.writers if self.relay.answers(writer)]

    async def _sweep(self, mine: list[PeerNode]) -> None:
        """End what dead nodes own, as far as it is due, by turns and until the next beat is."""
        failure: StoreError | None = None
        while mine and (begun := self.clock()) < self._next_beat:
            each = mine.pop(0)
            try:
                if await self._sweep_once(each):
                    mine.append(each)
            except StoreError as error:  # of this one; the others are not to wait for it
                failure = error
            await self.runtime.sleep(max(SWEEP_PAUSE_S, self.clock() - begun))
        if failure is not None:
            raise failure

    async def _sweep_once(self, each: PeerNode) -> bool:
        """Make one call a shard, or bury a node that was swept; return whether more may be due."""

        def note(step: Step, reply: Reply) -> None:
            self._counted.swept_sessions += reply.ended
            if each.ended is not None:
                each.ended += reply.ended
            each.offline += sum(told.n for told in reply.told if told.type == "offline")
            self.relay.transitions.note(reply.told)
            self.observer.swept(each, step.shard, reply)

        if steps := self._next_sweeps(each):
            await self._perform(steps, note)
            return True
        if not self.observer.is_swept(each, len(self.relay.writers)):
            return False
        told = await self._thread.call(lambda: self.table.bury(each.node, each.text))
        if told is not None:
            self._counted.swept += 1
            for writer in self.relay.writers:
                writer.settling.swept(each.node)
            event = "sweep of departed node finished" if each.has_left else "sweep of dead node finished"
            _log.info(event, peer=each.node, users_offline=each.offline, returned=_returned(told, each.ended))
        return False

    def _next_sweeps(self, each: PeerNode) -> list[Step]:
        end_ms = each.row.lease_end_ms if each.row else 0
        latest_ms = max(0, end_ms - self._lease_ms)
        now = self.clock()
        steps: list[Step] = []
        for writer in self._reachable():
            sweep = self.observer.due(each, writer.shard)
            if sweep is not None and writer.is_settled(now):
                waited_ms = int(self.observer.waited_s(sweep) * 1000)
                steps.append(writer.sweep(each.node, sweep.cursor, waited_ms, latest_ms))
        return steps

    async def _perform(self, steps: Sequence[Step], note: Callable[[Step, Reply], None]) -> None:
        """Perform steps and note each answer.

        Raises:
            StoreError: one or more were refused.
            StoreUnavailable: none was answered.
        """
        answers = await self._thread.call(lambda: self.store.apply(steps))
        failures = [answer for answer in answers if not isinstance(answer, Reply)]
        for step, answer in zip(steps, answers, strict=True):
            if isinstance(answer, Reply):
                note(step, answer)
        refusal = next((each for each in failures if isinstance(each, StoreError)), None)
        if refusal or len(failures) == len(steps):
            raise refusal or failures[0]

    async def _pause(self, error: StoreUnavailable | StoreError) -> None:
        self._counted.errors += 1
        self._counted.last_error = str(error)
        await self.runtime.sleep(self._outage.failed("beat", error))

    def _interrupt(self) -> None:
        self.store.close()
        self.table.close()

    def statistics(self) -> ClusterStatistics:
        """Return the counters as they are now."""
        return replace(self._counted, nodes=len(self.observer.watched))


def _returned(told: str, ended: int | None) -> int | None:
    """Return how many of the sessions that a node told of last were elsewhere when it was swept."""
    try:
        sessions = json.loads(told).get("sessions")
    except (ValueError, RecursionError, AttributeError):  # it told nothing, or something else
        return None
    return max(0, sessions - ended) if isinstance(sessions, int) and ended is not None else None
