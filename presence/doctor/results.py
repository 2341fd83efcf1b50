"""What the doctor looks at, and what a check has found: what is needed, what there is, and what fixes it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

CHECKS: Final = {
    "settings": "flags, variables and file: each known and sound, none against another",
    "token keys": "the file of the keys that clients' tokens are checked with",
    "certificate": "certificate and key for TLS, and until when it is good",
    "operators": "the file of operators' tokens, and who is asked for one",
    "strangers": "what is open to whoever reaches the port",
    "handlers": "functions for follow-ups, of --handler: each can be imported and called",
    "platform": "Linux with epoll",
    "embedded redis": "without a redis URL: a Redis to start, and its directory",
    "time": "a clock that is set by the network, as far as that can be seen",
    "open files": "the limit of a process beside the connections that each worker is to hold",
    "memory": "what sessions take and the outbox may take, beside what machine and control group have",
    "ports": "free, and for this user to listen on",
    "redis": "it answers",
    "redis version": "6.2 or newer",
    "redis role": "a primary, which takes writes",
    "redis rights": "the user may do what servers do, and no more",
    "redis persistence": "an append-only file, and nothing that keeps it from being written",
    "redis eviction": "nothing is deleted to make room",
    "redis memory": "room for users, streams and half as much again",
    "redis clients": "maxclients beside the connections of all workers",
    "redis latency": "the median of some pings",
    "replicas": "each follows closely",
    "slots": "of a cluster: a server for each",
    "slots' replicas": "of a cluster: a replica of each primary",
    "data": "the version of what Redis holds, and over how many shards",
    "nodes": "leases: everybody in the table lives, and runs the same version",
    "nodes' settings": "those that share a Redis agree about what they share",
}


class CheckStatus(Enum):
    """How a check ended, best first."""

    OK = "ok"
    NOT_TRIED = "not tried"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check has found.

    Attributes:
        check: its name in `CHECKS`.
        status: how it ended.
        need: what a server needs.
        have: what there is; of a check that was not tried, why not.
        fix: what to do about it; "" where nothing is to be done.
    """

    check: str
    status: CheckStatus
    need: str
    have: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """What could not be found out, in the place of a fact.

    Attributes:
        why: in words.
    """

    why: str


def ok(check: str, need: str, have: str) -> CheckResult:
    """Return the result that all is well."""
    return CheckResult(check, CheckStatus.OK, need, have)


def warn(check: str, need: str, have: str, fix: str) -> CheckResult:
    """Return the result that a server works, and not as well as it could."""
    return CheckResult(check, CheckStatus.WARN, need, have, fix)


def fail(check: str, need: str, have: str, fix: str) -> CheckResult:
    """Return the result that a server does not start, or does not keep what it promises."""
    return CheckResult(check, CheckStatus.FAIL, need, have, fix)


def not_tried(check: str, need: str, why: str, fix: str = "") -> CheckResult:
    """Return the result that nothing was found out; `fix` makes it be tried."""
    return CheckResult(check, CheckStatus.NOT_TRIED, need, why, fix)


def worst(results: Iterable[CheckResult]) -> CheckStatus:
    """Return the worst status of some results."""
    order = list(CheckStatus)
    return max((each.status for each in results), key=order.index, default=CheckStatus.OK)


def count(number: int) -> str:
    """Return a number as people read it."""
    return f"{number:,}"


def megabytes(number: int) -> str:
    """Return bytes as people read them."""
    return f"{number / 1_000_000:,.0f} MB"
