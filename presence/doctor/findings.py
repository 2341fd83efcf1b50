"""What a check has found: what is needed, what there is, and the line that mends it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """How a check ended, best first."""

    OK = "ok"
    NOT_TRIED = "not tried"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has found.

    Attributes:
        check: its name, as `presence.doctor.catalogue` has it.
        status: how it ended.
        need: what a server needs.
        have: what there is; of a check that was not tried, why not.
        mend: what to do about it; "" where nothing is to be done.
    """

    check: str
    status: Status
    need: str
    have: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """What could not be found out, in the place of a fact.

    Attributes:
        why: in words.
    """

    why: str


def ok(check: str, need: str, have: str) -> Finding:
    """Return the finding that all is well."""
    return Finding(check, Status.OK, need, have)


def warn(check: str, need: str, have: str, mend: str) -> Finding:
    """Return the finding that a server works, and not as well as it could."""
    return Finding(check, Status.WARN, need, have, mend)


def fail(check: str, need: str, have: str, mend: str) -> Finding:
    """Return the finding that a server does not start, or does not keep what it promises."""
    return Finding(check, Status.FAIL, need, have, mend)


def not_tried(check: str, need: str, why: str, mend: str = "") -> Finding:
    """Return the finding that nothing was found out; `mend` makes it be tried."""
    return Finding(check, Status.NOT_TRIED, need, why, mend)


def worst(findings: Iterable[Finding]) -> Status:
    """Return the worst status of some findings."""
    order = list(Status)
    return max((each.status for each in findings), key=order.index, default=Status.OK)
