"""Running seeds: one, or many in several processes."""

import gc
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import structlog

from tests.simulation.draw import draw_plan
from tests.simulation.guards import GUARDS
from tests.simulation.plan import SimulationPlan
from tests.simulation.projector import fewer_polls
from tests.simulation.world import SimulatedWorld
from tests.support.script_texts import changed, little_room

LITTLE_ROOM_EACH = 3  # in each third seed calls have little room for records
ROOM_BYTES = 12  # for each device: less would make them take too long together
FRAMES = 4  # of an exception, those next to where it was raised


@dataclass(frozen=True)
class SeedOutcome:
    seed: int  # which
    violations: tuple[str, ...]  # broken promises, or an exception
    faults: Counter[str]  # how often each kind was carried out
    virtual_s: float  # simulated seconds


@contextmanager
def without_logs() -> Iterator[None]:
    """Keep nodes from logging."""
    before = structlog.get_config()

    def drop(_logger: Any, _name: str, _event: Any) -> Any:
        raise structlog.DropEvent

    structlog.configure(processors=[drop], wrapper_class=structlog.BoundLogger)
    try:
        yield
    finally:
        structlog.configure(**before)


def run_plan(
    plan: SimulationPlan, *, guard: str = "", log: Callable[[str], None] | None = None
) -> SeedOutcome:
    off = next(each for each in GUARDS if each.name == guard).off() if guard else nullcontext()
    room: AbstractContextManager[None] = nullcontext()
    if plan.seed % LITTLE_ROOM_EACH == 0:
        room = changed(little_room(max(600, ROOM_BYTES * len(plan.devices))))
    with without_logs(), room, off, fewer_polls():
        world = SimulatedWorld(plan, log=log)
        # What a world leaves behind is one large circle, and goes with the next collection.
        gc.disable()
        try:
            violations = world.run()
        except Exception:  # a node's own failure is a broken promise too
            violations = [f"{world.agenda.now:.3f} exception: {traceback.format_exc(limit=-FRAMES)}"]
        finally:
            gc.enable()
    done = Counter({kind.name: times for kind, times in world.faults.counts.items()})
    return SeedOutcome(plan.seed, tuple(violations), done, plan.end_at)


def run_seed(seed: int, guard: str = "") -> SeedOutcome:
    return run_plan(draw_plan(seed), guard=guard)


def run_many(seeds: Iterable[int], jobs: int) -> Iterator[SeedOutcome]:
    """Run seeds in several processes; outcomes come in any order."""
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=4)
