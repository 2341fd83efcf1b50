"""Everything together: a plan carried out, and judged."""

from __future__ import annotations

import random
from collections.abc import Callable
from random import Random
from typing import Final

from presence.store.keys import Keys
from tests.simulation.devices import SimulatedDevice
from tests.simulation.faults import FaultInjector
from tests.simulation.host import Host
from tests.simulation.judge import SimulationJudge
from tests.simulation.machine import Agenda
from tests.simulation.observed import ObservedRedis
from tests.simulation.operator import Operator
from tests.simulation.plan import SimulationPlan
from tests.simulation.projector import SimulatedProjector
from tests.simulation.truth import TrueSessions

SLICE_S: Final = 10.0
MAX_WAIT_S: Final = 20.0  # the end, at most, while a node waits for others


class SimulatedWorld:
    """One simulation.

    Args:
        tell: receives the story, line by line; None: it is not written.

    Attributes:
        hosts, projectors: the process of each place, the one that ended until another replaces it.
    """

    def __init__(self, plan: SimulationPlan, *, log: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self._tell = log
        self.agenda = Agenda()
        self.keys = Keys(plan.settings.prefix, plan.settings.shard_count)
        self.redis = ObservedRedis(self.agenda, str(plan.seed))
        self.truth = TrueSessions()
        self.judge = SimulationJudge(self)
        self.redis.on_entry = self.judge.entry_written
        self.redis.on_run = self.judge.script_ran
        self.redis.on_room_entry = self.judge.rooms.entry_written
        self.redis.on_room_run = self.judge.rooms.script_ran
        self.hosts: list[Host] = []
        self.all_hosts: list[Host] = []
        self.projectors: list[SimulatedProjector] = []
        self.all_projectors: list[SimulatedProjector] = []
        self.host_of_node: dict[str, Host] = {}  # the process that had a node id
        self.devices: list[SimulatedDevice] = []
        self.faults = FaultInjector(self)
        self.operator = Operator(self)

    def note(self, text: str, *values: object) -> None:
        """Add a line to the story."""
        if self._tell is not None:
            self._tell(f"{self.agenda.now:9.3f}  {text.format(*values)}")

    def start_host(self, place: int) -> None:
        """Start a process, unless one runs in its place."""
        if place < len(self.hosts) and self.hosts[place].machine.is_alive:
            return
        host = Host(self, place, len(self.all_hosts))
        self.all_hosts.append(host)
        self.hosts[place : place + 1] = [host]

    def start_projector(self, place: int) -> None:
        """Start a projector of rooms, unless one runs in its place."""
        if place < len(self.projectors) and self.projectors[place].machine.is_alive:
            return
        projector = SimulatedProjector(self, place, len(self.all_projectors))
        self.all_projectors.append(projector)
        self.projectors[place : place + 1] = [projector]

    def pick_host(self, draw: Random) -> Host | None:
        """Return a process that a client may connect to; it may be one that does not answer."""
        able = [host for host in self.hosts if host.accepts()]
        return draw.choice(able) if able else None

    def _is_waiting(self) -> bool:
        return self.judge.rooms.is_behind() or any(
            writer.is_settling(host.clock.monotonic()) or host.node.outbox.pending
            for host in self.hosts
            if host.machine.is_alive
            for writer in host.node.relay.writers
        )

    def run(self) -> list[str]:
        """Run the plan; return the promises that were broken."""
        random.seed(self.plan.seed)  # what nodes draw
        for place in range(self.plan.nodes):
            self.start_host(place)
        for place in range(self.plan.projectors):
            self.start_projector(place)
        self.devices = [SimulatedDevice(self, device) for device in self.plan.devices]
        self.faults.schedule()
        self.operator.schedule()
        while self.agenda.now < self.plan.end_at and not self.judge.violations:
            self.agenda.run(min(self.agenda.now + SLICE_S, self.plan.end_at))
        latest = self.plan.end_at + MAX_WAIT_S
        while self.agenda.now < latest and self._is_waiting() and not self.judge.violations:
            self.agenda.run(min(self.agenda.now + 1.0, latest))
        if not self.judge.violations:
            self.judge.judge_final_state()
        for machine in [each.machine for each in self.all_hosts] + [
            each.machine for each in self.all_projectors
        ]:
            machine.end()
        return self.judge.violations
