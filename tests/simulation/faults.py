"""The faults of a plan, carried out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tests.simulation.fake.server import FakeSnapshot
from tests.simulation.judge import KnownState
from tests.simulation.plan import FaultKind, SimulatedFault
from tests.simulation.wire import FAIR, RedisConnection, Weather

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.world import SimulatedWorld

STUTTER_S: Final = 0.8  # less than a tick, most of it
STUTTER_EACH_S: Final = 2.0
CUTS: Final = {
    FaultKind.CUT_ALL: ("relay", "cluster", "leases"),
    FaultKind.CUT_LEASES: ("leases",),
    FaultKind.CUT_SHARDS: ("relay", "cluster"),
    FaultKind.CUT_SWEEPS: ("cluster",),
}


class FaultInjector:
    """Carries out what the plan has."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self.done: dict[FaultKind, int] = {}  # how often each kind was carried out
        self._kept: dict[SimulatedFault, tuple[FakeSnapshot, KnownState]] = {}

    def schedule(self) -> None:
        """Enter all faults in the agenda."""
        for fault in self._world.plan.faults:
            self._world.agenda.at(fault.at, self._act(fault))
            if fault.kind in {FaultKind.REDIS_BACK, FaultKind.REDIS_BACK_SAME}:
                self._world.agenda.at(fault.at - fault.amount, self._keeper(fault))

    def _act(self, fault: SimulatedFault) -> Callable[[], None]:
        def act() -> None:
            told = fault.kind.name, fault.node, fault.seconds, fault.amount
            self._world.note("fault: {} place {} for {:.1f} s, {:.2f}", *told)
            self.done[fault.kind] = self.done.get(fault.kind, 0) + 1
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
        machine, agenda = self._host(fault).machine, self._world.agenda
        until = agenda.now + fault.seconds

        def stutter() -> None:
            if agenda.now + STUTTER_S < until:
                machine.stop_for(STUTTER_S)
                agenda.after(STUTTER_EACH_S, stutter)

        stutter()

    def _crash(self, fault: SimulatedFault) -> None:
        host = self._host(fault)
        if not host.machine.alive:
            return
        others = [each for each in self._world.hosts if each.machine.alive and each is not host]
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
        wires = [self._host(fault).wires[name] for name in CUTS[fault.kind]]
        for wire in wires:
            wire.cuts += 1
            wire.refused = fault.amount > 0.5

        def mend() -> None:
            for wire in wires:
                wire.cuts -= 1
                wire.rough_until = self._world.agenda.now

        self._later(fault.seconds, mend)

    def _clients_cut(self, fault: SimulatedFault) -> None:
        host = self._host(fault)
        host.unreachable += 1

        def mend() -> None:
            host.unreachable -= 1

        self._later(fault.seconds, mend)

    def _weather(self, wires: list[RedisConnection], seconds: float, weather: Weather) -> None:
        for wire in wires:
            wire.weather = weather

        def calm() -> None:
            for wire in wires:
                if wire.weather is weather:
                    wire.weather = FAIR
                    wire.rough_until = self._world.agenda.now

        self._later(seconds, calm)

    def _loss(self, fault: SimulatedFault) -> None:
        weather = replace(FAIR, lose_request=fault.amount / 2, lose_reply=fault.amount)
        self._weather([*self._host(fault).wires.values()], fault.seconds, weather)

    def _late(self, fault: SimulatedFault) -> None:
        longest = self._world.plan.heal_at - self._world.agenda.now
        weather = Weather(
            late=fault.amount / 2, twice=fault.amount, late_s=(2.0, max(2.1, min(60.0, longest)))
        )
        self._weather([*self._host(fault).wires.values()], fault.seconds, weather)

    def _stray(self, fault: SimulatedFault) -> None:
        wire = self._host(fault).wires["relay"]
        longest = max(2.1, self._world.plan.heal_at - self._world.agenda.now)
        self._weather(
            [wire], 2.6, Weather(late=1.0, late_s=(fault.seconds, min(longest, fault.seconds + 1.0)))
        )

    # Redis

    def _redis_away(self, fault: SimulatedFault) -> None:
        self._world.redis.leave(fault.seconds, refuses=fault.amount > 0.5)

    def _redis_slow(self, fault: SimulatedFault) -> None:
        wires = [wire for host in self._world.all_hosts for wire in host.wires.values()]
        self._weather(wires, fault.seconds, Weather(delay_s=fault.amount))

    def _redis_empty(self, fault: SimulatedFault) -> None:
        self._redis_away(fault)
        self._world.redis.restart()
        self._world.judge.redis_forgot(None)

    def _keeper(self, fault: SimulatedFault) -> Callable[[], None]:
        def keep() -> None:
            self._kept[fault] = (self._world.redis.snapshot(), self._world.judge.kept())

        return keep

    def _redis_back(self, fault: SimulatedFault) -> None:
        self._redis_away(fault)
        snapshot, kept = self._kept.pop(fault)
        self._world.redis.restart(snapshot)
        self._world.judge.redis_forgot(kept)

    def _redis_back_same(self, fault: SimulatedFault) -> None:
        snapshot, kept = self._kept.pop(fault)
        self._world.redis.restore(snapshot)
        self._world.judge.redis_forgot(kept, silently=True)

    def _flush(self, _fault: SimulatedFault) -> None:
        self._world.redis.flush_all()
        self._world.judge.redis_forgot(None)


_HANDLERS: Final = dict.fromkeys(CUTS, "cut") | dict.fromkeys(
    (FaultKind.CRASH_RESET, FaultKind.CRASH_SILENT), "crash"
)
