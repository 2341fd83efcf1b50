"""Making a failing plan smaller: whatever can be left out while the same rule is still broken is left out."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TypeVar

from tests.simulation.plan import DevicePlan, SimulationPlan
from tests.simulation.runs import SeedOutcome, run_plan

T = TypeVar("T")
Fails = Callable[[SimulationPlan], bool]


def rule_of(outcome: SeedOutcome) -> str:
    """Return the name of the first broken rule, or ""."""
    return outcome.violations[0].split(" ", 2)[1] if outcome.violations else ""


def shrink(
    plan: SimulationPlan, *, guard: str = "", report: Callable[[str], None] = lambda _: None
) -> SimulationPlan:
    """Return a smaller plan that breaks the same rule as `plan`; `told` receives the progress."""
    rule = rule_of(run_plan(plan, guard=guard))

    def fails(smaller: SimulationPlan) -> bool:
        return rule_of(run_plan(smaller, guard=guard)) == rule

    size = -1
    while size != _size(plan):
        size = _size(plan)
        report(f"{rule}: {len(plan.faults)} faults, {len(plan.devices)} devices, {size} parts in all")
        plan = _without(plan, plan.faults, lambda plan, left: replace(plan, faults=tuple(left)), fails)
        plan = _without(plan, plan.devices, lambda plan, left: replace(plan, devices=tuple(left)), fails)
        for device in plan.devices:
            plan = _without(plan, device.actions, _with_actions(device.name), fails)
    return plan


def _size(plan: SimulationPlan) -> int:
    return len(plan.faults) + len(plan.devices) + sum(len(device.actions) for device in plan.devices)


def _with_actions(name: str) -> Callable[[SimulationPlan, Sequence[object]], SimulationPlan]:
    def put(plan: SimulationPlan, left: Sequence[object]) -> SimulationPlan:
        devices: list[DevicePlan] = [
            replace(each, actions=tuple(left)) if each.name == name else each  # type: ignore[arg-type]
            for each in plan.devices
        ]
        return replace(plan, devices=tuple(devices))

    return put


def _without(
    plan: SimulationPlan,
    parts: Sequence[T],
    put: Callable[[SimulationPlan, Sequence[T]], SimulationPlan],
    fails: Fails,
) -> SimulationPlan:
    """Leave out as many items as possible: halves first, then quarters, in the end one by one."""
    left = list(parts)
    chunk = len(left)
    while chunk:
        first = 0
        while first < len(left):
            fewer = left[:first] + left[first + chunk :]
            smaller = put(plan, fewer)
            if fails(smaller):
                plan, left = smaller, fewer
            else:
                first += chunk
        chunk //= 2
    return plan


def describe(plan: SimulationPlan) -> list[str]:
    """Return a plan as lines: settings other than the defaults, then each fault and each device."""
    settings = {
        field.name: getattr(plan.settings, field.name)
        for field in fields(plan.settings)
        if getattr(plan.settings, field.name) != field.default
    }
    return [
        f"{plan.nodes} nodes, rates {plan.rates}, {settings}, max_changes {plan.max_changes}",
        *map(str, plan.faults),
        *map(str, plan.devices),
    ]
