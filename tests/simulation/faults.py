"""The faults of a plan, carried out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tests.simulation.fake.server import FakeSnapshot
from tests.simulation.judge import KnownState
from tests.simulation.machine import Machine
from tests.simulation.plan import FaultKind, SimulatedFault
from tests.simulation.projector import SimulatedProjector
from tests.simulation.wire import NO_FAULTS, ConnectionFaults, RedisConnection

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.world import SimulatedWorld

STUTTER_S: Final = 0.8  # less than a tick, most of it
STUTTER_INTERVAL_S: Final = 2.0
PROJECTOR_STUTTER_S: Final = 1.8  # longer than a projector's lease, which another one takes
CUTS: Final = {
    FaultKind.CUT_ALL: ("relay", "cluster", "leases", "bans"),
    FaultKind.CUT_LEASES: ("leases",),
    FaultKind.CUT_SHARDS: ("relay", "cluster"),
    FaultKind.CUT_SWEEPS: ("cluster",),
}


class FaultInjector:
    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self.counts: dict[FaultKind, int] = {}  # how often each kind was carried out
        self._snapshots: dict[SimulatedFault, tuple[FakeSnapshot, KnownState]] = {}

    def schedule(self) -> None:
        for fault in self._world.plan.faults:
            self._world.agenda.at(fault.at, self._runner(fault))
            if fault.kind in {FaultKind.REDIS_BACK, FaultKind.REDIS_BACK_SAME}:
                self._world.agenda.at(fault.at - fault.amount, self._snapshot_taker(fault))

    def _runner(self, fault: SimulatedFault) -> Callable[[], None]:
        def act() -> None:
            details = fault.kind.name, fault.node, fault.seconds, fault.amount
            self._world.note("fault: {} place {} for {:.1f} s, {:.2f}", *details)
            self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
            getattr(self, f"_{_HANDLERS.get(fault.kind, fault.kind.name.lower())}")(fault)

        return act

    def _host(self, fault: SimulatedFault) -> Host:
        return self._world.hosts[fault.node % len(self._world.hosts)]

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        self._world.agenda.after(seconds, act)

    # Processes

    def _stop(self, fault: SimulatedFault) -> None:
        self._host(fault).machine.stop_for(fault.seconds)

    def _stutter(self, fault: SimulatedFault) -> None:
        self._stop_repeatedly(self._host(fault).machine, fault.seconds, STUTTER_S, STUTTER_INTERVAL_S)

    def _stop_repeatedly(self, machine: Machine, seconds: float, stop_s: float, interval_s: float) -> None:
        agenda = self._world.agenda
        until = agenda.now + seconds

        def stutter() -> None:
            if agenda.now + stop_s < until:
                machine.stop_for(stop_s)
                agenda.after(interval_s, stutter)

        stutter()

    def _crash(self, fault: SimulatedFault) -> None:
        host = self._host(fault)
        if not host.machine.is_alive:
            return
        others = [each for each in self._world.hosts if each.machine.is_alive and each is not host]
        host.crash(silently=fault.kind is FaultKind.CRASH_SILENT)
        if fault.seconds < float("inf") or not others:
            self._later(min(fault.seconds, 60.0), lambda: self._world.start_host(host.place))

    def _drain(self, fault: SimulatedFault) -> None:
        host = self._host(fault)
        if not host.accepts():
            return
        host.drain()
        host.machine.at_end.append(
            lambda: self._later(fault.seconds, lambda: self._world.start_host(host.place))
        )

    def _join(self, _fault: SimulatedFault) -> None:
        self._world.start_host(len(self._world.hosts))

    # Networks

    def _cut(self, fault: SimulatedFault) -> None:
        self._cut_off([self._host(fault).redis_connections[name] for name in CUTS[fault.kind]], fault)

    def _cut_off(self, connections: list[RedisConnection], fault: SimulatedFault) -> None:
        for connection in connections:
            connection.cuts += 1
            connection.refused = fault.amount > 0.5

        def heal() -> None:
            for connection in connections:
                connection.cuts -= 1
                connection.disturbed_until = self._world.agenda.now

        self._later(fault.seconds, heal)

    def _clients_cut(self, fault: SimulatedFault) -> None:
        host = self._host(fault)
        host.unreachable += 1

        def heal() -> None:
            host.unreachable -= 1

        self._later(fault.seconds, heal)

    def _disturb(self, connections: list[RedisConnection], seconds: float, faults: ConnectionFaults) -> None:
        for connection in connections:
            connection.faults = faults

        def heal() -> None:
            for connection in connections:
                if connection.faults is faults:
                    connection.faults = NO_FAULTS
                    connection.disturbed_until = self._world.agenda.now

        self._later(seconds, heal)

    def _loss(self, fault: SimulatedFault) -> None:
        connections = [*self._host(fault).redis_connections.values()]
        self._disturb(connections, fault.seconds, _losses(fault.amount))

    def _late(self, fault: SimulatedFault) -> None:
        connections = [*self._host(fault).redis_connections.values()]
        self._disturb(connections, fault.seconds, self._delays(fault.amount))

    def _delays(self, share: float) -> ConnectionFaults:
        longest_s = max(2.1, min(60.0, self._world.plan.heal_at - self._world.agenda.now))
        return ConnectionFaults(late_share=share / 2, twice_share=share, late_s=(2.0, longest_s))

    def _stray(self, fault: SimulatedFault) -> None:
        connection = self._host(fault).redis_connections["relay"]
        longest = max(2.1, self._world.plan.heal_at - self._world.agenda.now)
        self._disturb(
            [connection],
            2.6,
            ConnectionFaults(late_share=1.0, late_s=(fault.seconds, min(longest, fault.seconds + 1.0))),
        )

    # Redis

    def _redis_away(self, fault: SimulatedFault) -> None:
        self._world.redis.make_unreachable(fault.seconds, refuses=fault.amount > 0.5)

    def _redis_slow(self, fault: SimulatedFault) -> None:
        connections = [
            connection for host in self._world.all_hosts for connection in host.redis_connections.values()
        ]
        connections += [projector.redis_connection for projector in self._world.all_projectors]
        self._disturb(connections, fault.seconds, ConnectionFaults(delay_s=fault.amount))

    def _redis_empty(self, fault: SimulatedFault) -> None:
        self._redis_away(fault)
        self._world.redis.restart()
        self._world.judge.data_lost(None)
        self._world.operator.tell_all()

    def _snapshot_taker(self, fault: SimulatedFault) -> Callable[[], None]:
        def keep() -> None:
            self._snapshots[fault] = (self._world.redis.snapshot(), self._world.judge.snapshot())

        return keep

    def _redis_back(self, fault: SimulatedFault) -> None:
        self._redis_away(fault)
        snapshot, state = self._snapshots.pop(fault)
        self._world.redis.restart(snapshot)
        self._world.judge.data_lost(state)
        self._world.operator.tell_all()

    def _redis_back_same(self, fault: SimulatedFault) -> None:
        snapshot, state = self._snapshots.pop(fault)
        self._world.redis.restore(snapshot)
        self._world.judge.data_lost(state, silently=True)

    def _flush(self, _fault: SimulatedFault) -> None:
        self._world.redis.flush_all()
        self._world.judge.data_lost(None)

    # Rooms

    def _projector(self, fault: SimulatedFault) -> SimulatedProjector:
        return self._world.projectors[fault.node % len(self._world.projectors)]

    def _projector_kill(self, fault: SimulatedFault) -> None:
        projector = self._projector(fault)
        projector.machine.end()
        self._later(fault.seconds, lambda: self._world.start_projector(projector.place))

    def _projector_stop(self, fault: SimulatedFault) -> None:
        self._projector(fault).machine.stop_for(fault.seconds)

    def _projector_stutter(self, fault: SimulatedFault) -> None:
        machine, stop_s = self._projector(fault).machine, PROJECTOR_STUTTER_S
        self._stop_repeatedly(machine, fault.seconds, stop_s, stop_s + fault.amount)

    def _projector_cut(self, fault: SimulatedFault) -> None:
        self._cut_off([self._projector(fault).redis_connection], fault)

    def _projector_loss(self, fault: SimulatedFault) -> None:
        self._disturb([self._projector(fault).redis_connection], fault.seconds, _losses(fault.amount))

    def _projector_late(self, fault: SimulatedFault) -> None:
        self._disturb([self._projector(fault).redis_connection], fault.seconds, self._delays(fault.amount))

    def _rebuild(self, _fault: SimulatedFault) -> None:
        self._world.judge.rooms.have_rebuilt()


def _losses(share: float) -> ConnectionFaults:
    return replace(NO_FAULTS, lose_request=share / 2, lose_reply=share)


_HANDLERS: Final = dict.fromkeys(CUTS, "cut") | dict.fromkeys(
    (FaultKind.CRASH_RESET, FaultKind.CRASH_SILENT), "crash"
)
