"""How late an end may be: decided, told, and swept; the rules `late`, `untold` and `unswept` of `judge`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from presence.cluster import BEATS_A_LEASE
from tests.simulation.plan import Fault, Kind
from tests.simulation.sockets import WINDOW_S

if TYPE_CHECKING:
    from tests.simulation.truth import Life
    from tests.simulation.world import World

TELLING_S: Final = 0.5  # gathering, a batch under way before, and its own
WAITS_S: Final = (
    15.0  # ends wait for others that long after a resync, which follows a fault by a probe or two, or a gap
)
SWEEP_SLACK_S: Final = 2.0  # beside a beat of the node that died, and one of its observer
SLOWEST_CLOCK: Final = 0.97
DRAIN_S: Final = 15.0  # until the process has ended
LATE_S: Final = 62.0  # until the last call is carried out
EDGE_S: Final = 0.001


def decision_allowed_s(world: World, life: Life, now: float) -> float:
    """Return the silence, by its node's clock, after which a session must have ended."""
    machine, settings = life.host.machine, world.plan.settings
    stopped_s = machine.stopped_between(life.readable, now)
    rate = machine.clock.rate
    credit_s = machine.credit_since(life.readable - 2 * settings.tick, settings.idle_timeout / rate)
    return life.idle_timeout + (settings.tick + WINDOW_S + stopped_s + credit_s) * rate


def telling_allowed_s(world: World, life: Life, decided_at: float, gap_at: float) -> float:
    """Return how long after its decision an end may be told; `gap_at`: of its process's last gap entry."""
    since, relay = decided_at - WAITS_S, life.host.node.relay
    # A comparison that found a difference begins a resync like one after a fault; by its node's clock.
    began_s = life.host.clock.monotonic() - relay.writers[world.keys.shard(life.key[0])]._began
    has_compared = relay.statistics().differences > 0 and began_s < (world.agenda.now - since)
    is_quiet = gap_at < since and not has_compared and is_calm(world, since, world.agenda.now)
    return TELLING_S if is_quiet else float("inf")


def sweep_allowed_s(world: World, life: Life) -> float:
    """Return how long after its process's death a session may be swept."""
    settings, died_at = world.plan.settings, life.host.machine.ended_at
    # Another end of the same process, a restart in its place, or whatever else changes what observers see.
    if not is_calm(world, died_at - WAITS_S, died_at - EDGE_S) or not is_calm(
        world, died_at + EDGE_S, world.agenda.now
    ):
        return float("inf")
    waits_s = settings.lease + max(settings.idle_timeout, life.idle_timeout)
    return (waits_s + 3 * settings.lease / BEATS_A_LEASE + SWEEP_SLACK_S) / SLOWEST_CLOCK


def is_calm(world: World, since: float, until: float) -> bool:
    """Whether no fault was at work in a span of true time."""
    return not any(fault.at <= until and _lasts_until(fault) >= since for fault in world.plan.faults)


def _lasts_until(fault: Fault) -> float:
    match fault.kind:
        case Kind.CRASH_RESET | Kind.CRASH_SILENT:
            return fault.at  # that another process starts later disturbs nobody
        case Kind.DRAIN:
            return fault.at + DRAIN_S
        case Kind.LATE | Kind.STRAY:
            return fault.at + fault.seconds + LATE_S
    return fault.at + fault.seconds
