"""Excuses of a process: how late ends may be decided, reported, swept, and what Redis may miss.

See the rules `late`, `untold`, `unswept` and `false` in `judge`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from loadtest.checker import NO_CLAIM, Claim, is_false_offline
from presence.cluster.lease_renewal import RENEWALS_PER_LEASE
from presence.outbox.relay import GATHER_S
from tests.simulation.plan import ROOM_FAULTS, FaultKind, SimulatedFault
from tests.simulation.sockets import WINDOW_S
from tests.simulation.truth import LONG_AGO, Key, TrueSession

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.world import SimulatedWorld

REPORT_S: Final = 0.5  # gathering, a batch under way before, and its own
RESYNC_WAIT_S: Final = (
    15.0  # ends wait for others that long after a resync, which follows a fault by a probe or two, or a gap
)
SWEEP_SLACK_S: Final = 2.0  # beside a heartbeat of the node that died, and one of its observer
SLOWEST_CLOCK: Final = 0.97
DRAIN_S: Final = 15.0  # until the process has ended
LATE_CALL_S: Final = 62.0  # until the last call is carried out
INSTANT_S: Final = 0.001
RECOVERY_S: Final = 2.0  # back-off of a second, a probe, an opening and its batches
IN_FLIGHT_S: Final = 5.0  # a login applied later after its sending may be taken for younger than it is
BRIEF_OUTAGE_S: Final = 1.0  # after shorter absences of Redis ends do not wait for logins elsewhere
LOGIN_LAG_S: Final = 0.5  # gathering, a batch whose ends are deferred, and a call or two
EPSILON_S: Final = 0.005  # ages travel in whole milliseconds
ROLLBACK_S: Final = 2.5 + RECOVERY_S  # until every node has probed


def decision_allowed_s(world: SimulatedWorld, life: TrueSession, now: float) -> float:
    """Return the silence, by its node's clock, after which a session must have ended."""
    machine, settings = life.host.machine, world.plan.settings
    stopped_s = machine.stopped_between(life.readable, now)
    rate = machine.clock.rate
    credit_s = machine.credit_since(life.readable - 2 * settings.tick, settings.idle_timeout / rate)
    return life.idle_timeout + (settings.tick + WINDOW_S + stopped_s + credit_s) * rate


def report_allowed_s(
    world: SimulatedWorld, life: TrueSession, decided_at: float, gap_at: float, *, is_cut: bool
) -> float:
    """Return how long after its decision an end may be reported.

    Args:
        gap_at: true time of the last gap entry of its process.
        is_cut: whether a batch of its process was refused as heavy since the decision.
    """
    since, node = decided_at - RESYNC_WAIT_S, life.host.node
    # A comparison that found a difference begins a resync like one after a fault; by its node's clock.
    log = node.outbox.logs[world.keys.shard(life.key[0])]
    started_s = life.host.clock.monotonic() - log.overflow.opened_at
    has_compared = node.relay.statistics().differences > 0 and started_s < (world.agenda.now - since)
    is_quiet = gap_at < since and not has_compared and is_calm(world, since, world.agenda.now)
    return REPORT_S + (GATHER_S if is_cut else 0.0) if is_quiet else float("inf")


def sweep_allowed_s(world: SimulatedWorld, life: TrueSession) -> float:
    """Return how long after its process's death a session may be swept."""
    settings, died_at = world.plan.settings, life.host.machine.ended_at
    # Another end of the same process, a restart in its place, or whatever else changes what observers see.
    if not is_calm(world, died_at - RESYNC_WAIT_S, died_at - INSTANT_S) or not is_calm(
        world, died_at + INSTANT_S, world.agenda.now
    ):
        return float("inf")
    waits_s = settings.lease + max(settings.idle_timeout, life.longest_timeout)
    return (waits_s + 3 * settings.lease / RENEWALS_PER_LEASE + SWEEP_SLACK_S) / SLOWEST_CLOCK


def is_calm(world: SimulatedWorld, since: float, until: float) -> bool:
    """Whether no fault was at work in a span of true time that nodes may notice."""
    return not any(
        fault.at <= until and _lasts_until(fault) >= since
        for fault in world.plan.faults
        if fault.kind not in ROOM_FAULTS
    )


def _lasts_until(fault: SimulatedFault) -> float:
    match fault.kind:
        case FaultKind.CRASH_RESET | FaultKind.CRASH_SILENT:
            return fault.at  # that another process starts later has no effect
        case FaultKind.DRAIN:
            return fault.at + DRAIN_S
        case FaultKind.LATE | FaultKind.STRAY:
            return fault.at + fault.seconds + LATE_CALL_S
    return fault.at + fault.seconds


class Liveness:
    """What has happened that excuses a process.

    Attributes:
        reported_skips: changes that gap entries reported, by the process that skipped them.
        refused_as_heavy_at: true time of the last batch refused as heavy, by the process that sent it.
    """

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self.rolled_back_at = LONG_AGO  # true time at which Redis last went back in the same history
        self.reported_skips: dict[Host, int] = {}
        self.skips_reported_at: dict[Host, float] = {}  # when the last of these was written
        self.refused_as_heavy_at: dict[Host, float] = {}
        self._late_login_at: dict[Key, float] = {}

    def login_applied(self, key: Key) -> None:
        """Redis has just applied a login, or a registration, of a device."""
        if self._world.redis.in_flight_s > IN_FLIGHT_S:
            self._late_login_at[key] = self._world.agenda.now

    def is_outdated(self, life: TrueSession) -> bool:
        """Whether Redis has since applied another login of the device that was in flight for long."""
        return self._late_login_at.get(life.key, LONG_AGO) >= life.arrived

    def must_be_known(self, life: TrueSession, decided_at: float, reporter: Host) -> bool:
        """Whether a session lived then, lives now, and Redis must know of it, as `reporter` could see."""
        now = self._world.agenda.now
        claim = self._claim(life, decided_at, reporter)
        return (
            is_false_offline(claim, decided_at, now)
            and life.is_registered()
            and not self._is_excused(life, now, reporter)
        )

    def _claim(self, life: TrueSession, decided_at: float, reporter: Host) -> Claim:
        now = self._world.agenda.now
        if not self._is_seen(life, reporter) or not life.is_alive(now) or self.is_outdated(life):
            return NO_CLAIM
        # Redis dates both by the ages that their nodes report, each by its own clock.
        clocks = abs(reporter.clock.rate - 1.0) + abs(life.host.clock.rate - 1.0)
        doubt_s = EPSILON_S + (now - decided_at) * clocks
        return Claim(life.handled + doubt_s, life.handled + LOGIN_LAG_S, math.inf)

    def _is_seen(self, life: TrueSession, reporter: Host) -> bool:
        """Whether a process has seen the session's process at work in its shard; else it does not wait."""
        if life.host is reporter:
            return True
        peers = reporter.node.relay.writers[self._world.keys.shard(life.key[0])].gate.peers
        return not life.host.ids.isdisjoint(
            {*peers.traces, *peers.traces_before, *peers.recent_lease_holders}
        )

    def _is_excused(self, life: TrueSession, now: float, reporter: Host) -> bool:
        redis, machine = self._world.redis, life.host.machine
        if now - self.rolled_back_at < ROLLBACK_S or redis.was_away_unnoticed(
            reporter.redis_connections["relay"].failed_at, RECOVERY_S, BRIEF_OUTAGE_S
        ):
            return True
        dropped = life.host.node.outbox.statistics().skipped_total
        if (
            dropped > self.reported_skips.get(life.host, 0)
            or now - self.skips_reported_at.get(life.host, LONG_AGO) < RECOVERY_S
        ):
            return True
        if machine.stopped_since is not None or now - machine.resumed_at < RECOVERY_S:
            return True
        return life.host.redis_connections["relay"].is_failing(now - RECOVERY_S)
