"""The faults of a plan, carried out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tests.simulation.fake.server import Snapshot
from tests.simulation.judge import Kept
from tests.simulation.plan import Fault, Kind
from tests.simulation.wire import FAIR, Weather, Wire

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.world import World

STUTTER_S: Final = 0.8  # less than a tick, most of it
STUTTER_EACH_S: Final = 2.0
CUTS: Final = {
    Kind.CUT_ALL: ("relay", "cluster", "leases"),
    Kind.CUT_LEASES: ("leases",),
    Kind.CUT_SHARDS: ("relay", "cluster"),
    Kind.CUT_SWEEPS: ("cluster",),
}


class Faults:
    """Carries out what the plan has."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.done: dict[Kind, int] = {}  # how often each kind was carried out
        self._kept: dict[Fault, tuple[Snapshot, Kept]] = {}

    def schedule(self) -> None:
        """Enter all faults in the agenda."""
        for fault in self._world.plan.faults:
            self._world.agenda.at(fault.at, self._act(fault))
            if fault.kind in {Kind.REDIS_BACK, Kind.REDIS_BACK_SAME}:
                self._world.agenda.at(fault.at - fault.amount, self._keeper(fault))

    def _act(self, fault: Fault) -> Callable[[], None]:
        def act() -> None:
            told = fault.kind.name, fault.node, fault.seconds, fault.amount
            self._world.note("fault: {} place {} for {:.1f} s, {:.2f}", *told)
            self.done[fault.kind] = self.done.get(fault.kind, 0) + 1
            getattr(self, f"_{_HANDLERS.get(fault.kind, fault.kind.name.lower())}")(fault)

        return act

    def _host(self, fault: Fault) -> Host:
        return self._world.hosts[fault.node % len(self._world.hosts)]

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        self._world.agenda.after(seconds, act)

    # Processes

    def _stop(self, fault: Fault) -> None:
        self._host(fault).machine.stop_for(fault.seconds)

    def _stutter(self, fault: Fault) -> None:
        machine, agenda = self._host(fault).machine, self._world.agenda
        until = agenda.now + fault.seconds

        def stutter() -> None:
            if agenda.now + STUTTER_S < until:
                machine.stop_for(STUTTER_S)
                agenda.after(STUTTER_EACH_S, stutter)

        stutter()

    def _crash(self, fault: Fault) -> None:
        host = self._host(fault)
        if not host.machine.alive:
            return
        others = [each for each in self._world.hosts if each.machine.alive and each is not host]
        host.crash(silently=fault.kind is Kind.CRASH_SILENT)
        if fault.seconds < float("inf") or not others:
            self._later(min(fault.seconds, 60.0), lambda: self._world.start_host(host.place))

    def _drain(self, fault: Fault) -> None:
        host = self._host(fault)
        if not host.accepts():
            return
        host.drain()
        host.machine.at_end.append(
            lambda: self._later(fault.seconds, lambda: self._world.start_host(host.place))
        )

    def _join(self, _fault: Fault) -> None:
        self._world.start_host(len(self._world.hosts))

    # Networks

    def _cut(self, fault: Fault) -> None:
        wires = [self._host(fault).wires[name] for name in CUTS[fault.kind]]
        for wire in wires:
            wire.cuts += 1
            wire.refused = fault.amount > 0.5

        def mend() -> None:
            for wire in wires:
                wire.cuts -= 1
                wire.rough_until = self._world.agenda.now

        self._later(fault.seconds, mend)

    def _clients_cut(self, fault: Fault) -> None:
        host = self._host(fault)
        host.unreachable += 1

        def mend() -> None:
            host.unreachable -= 1

        self._later(fault.seconds, mend)

    def _weather(self, wires: list[Wire], seconds: float, weather: Weather) -> None:
        for wire in wires:
            wire.weather = weather

        def calm() -> None:
            for wire in wires:
                if wire.weather is weather:
                    wire.weather = FAIR
                    wire.rough_until = self._world.agenda.now

        self._later(seconds, calm)

    def _loss(self, fault: Fault) -> None:
        weather = replace(FAIR, lose_request=fault.amount / 2, lose_reply=fault.amount)
        self._weather([*self._host(fault).wires.values()], fault.seconds, weather)

    def _late(self, fault: Fault) -> None:
        longest = self._world.plan.heal_at - self._world.agenda.now
        weather = Weather(
            late=fault.amount / 2, twice=fault.amount, late_s=(2.0, max(2.1, min(60.0, longest)))
        )
        self._weather([*self._host(fault).wires.values()], fault.seconds, weather)

    def _stray(self, fault: Fault) -> None:
        wire = self._host(fault).wires["relay"]
        longest = max(2.1, self._world.plan.heal_at - self._world.agenda.now)
        self._weather(
            [wire], 2.6, Weather(late=1.0, late_s=(fault.seconds, min(longest, fault.seconds + 1.0)))
        )

    # Redis

    def _redis_away(self, fault: Fault) -> None:
        self._world.redis.leave(fault.seconds, refuses=fault.amount > 0.5)

    def _redis_slow(self, fault: Fault) -> None:
        wires = [wire for host in self._world.all_hosts for wire in host.wires.values()]
        self._weather(wires, fault.seconds, Weather(delay_s=fault.amount))

    def _redis_empty(self, fault: Fault) -> None:
        self._redis_away(fault)
        self._world.redis.restart()
        self._world.judge.redis_forgot(None)

    def _keeper(self, fault: Fault) -> Callable[[], None]:
        def keep() -> None:
            self._kept[fault] = (self._world.redis.snapshot(), self._world.judge.kept())

        return keep

    def _redis_back(self, fault: Fault) -> None:
        self._redis_away(fault)
        snapshot, kept = self._kept.pop(fault)
        self._world.redis.restart(snapshot)
        self._world.judge.redis_forgot(kept)

    def _redis_back_same(self, fault: Fault) -> None:
        snapshot, kept = self._kept.pop(fault)
        self._world.redis.restore(snapshot)
        self._world.judge.redis_forgot(kept, silently=True)

    def _flush(self, _fault: Fault) -> None:
        self._world.redis.flush_all()
        self._world.judge.redis_forgot(None)


_HANDLERS: Final = dict.fromkeys(CUTS, "cut") | dict.fromkeys((Kind.CRASH_RESET, Kind.CRASH_SILENT), "crash")
