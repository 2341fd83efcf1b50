"""The list of checks, and the result of one: what is needed, what is present, and the fix.

Tests: `tests/doctor/test_run.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

CHECKS: Final = {
    "settings": "flags, variables and file: known, valid and without contradictions",
    "token keys": "the file of keys for verifying the tokens of clients",
    "certificate": "certificate and key for TLS, and the expiry date",
    "revocation lists": "revocation lists of client certificates, and the expiry date",
    "operators": "the file of operator tokens, and whether one is required",
    "strangers": "what is open to anyone who reaches the port",
    "handlers": "handlers of follow-ups, from --handler: can be imported and called",
    "platform": "Linux with epoll",
    "embedded redis": "without a redis URL: a Redis binary to start, and its directory",
    "time": "a clock synchronised over the network, if that can be determined",
    "open files": "the limit of a process, compared with the connections per worker",
    "memory": "memory for sessions and the outbox, compared with machine and control group",
    "ports": "free, and this user may listen on them",
    "redis": "it answers",
    "redis version": "6.2 or newer",
    "redis role": "a primary, which accepts writes",
    "redis rights": "the user has the permissions that servers need, and no more",
    "redis persistence": "an append-only file that can be written",
    "redis eviction": "no keys are evicted",
    "redis memory": "memory for users, streams and half as much again",
    "redis clients": "maxclients, compared with the connections of all workers",
    "redis latency": "the median of some pings",
    "replicas": "each has little lag",
    "slots": "in a cluster: each is served",
    "slots' replicas": "in a cluster: each primary has a replica",
    "sentinels": "behind Sentinels: they name one primary, and could replace it",
    "data": "version and number of shards of the data in Redis",
    "nodes": "all nodes with a lease are alive, and run the same version",
    "nodes' settings": "nodes that share a Redis have the same shared settings",
}


class CheckStatus(Enum):
    """The outcomes of a check, best first."""

    OK = "ok"
    NOT_TRIED = "not tried"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckResult:
    check: str  # its name in `CHECKS`
    status: CheckStatus
    need: str  # what a server needs
    have: str  # what is present; for a check that was not tried, the reason
    fix: str = ""  # what to do; "" for nothing


@dataclass(frozen=True, slots=True)
class Unknown:
    """Stands for a fact that could not be determined, and says why."""

    why: str


def ok(check: str, need: str, have: str) -> CheckResult:
    """Return a result: the requirement is met."""
    return CheckResult(check, CheckStatus.OK, need, have)


def warn(check: str, need: str, have: str, fix: str) -> CheckResult:
    """Return a result: a server works, but not as well as it could."""
    return CheckResult(check, CheckStatus.WARN, need, have, fix)


def fail(check: str, need: str, have: str, fix: str) -> CheckResult:
    """Return a result: a server does not start, or breaks its guarantees."""
    return CheckResult(check, CheckStatus.FAIL, need, have, fix)


def not_tried(check: str, need: str, why: str, fix: str = "") -> CheckResult:
    """Return a result: the check was not possible; `fix` makes it possible."""
    return CheckResult(check, CheckStatus.NOT_TRIED, need, why, fix)


def worst(results: Iterable[CheckResult]) -> CheckStatus:
    order = list(CheckStatus)
    return max((each.status for each in results), key=order.index, default=CheckStatus.OK)


def count(number: int) -> str:
    """Return a number with thousands separators."""
    return f"{number:,}"


def megabytes(number: int) -> str:
    """Return a number of bytes in megabytes."""
    return f"{number / 1_000_000:,.0f} MB"
