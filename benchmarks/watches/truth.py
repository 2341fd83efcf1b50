"""The truth about users, and what it says of views and pushes.

Tests: `tests/benchmarks/test_watches.py`.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.watches.crowd import STATUSES, CrowdLog, Views
from benchmarks.watches.graph import FriendGraph
from loadtest.outcome import BrokenPromises
from presence.protocol import Code

UNTIMED = frozenset({int(Code.IDLE_TIMEOUT)})  # what users do not send


class UserChange(NamedTuple):
    """An event of a user."""

    user: int
    code: int
    id: int


class TrueState(NamedTuple):
    """What every view of a user must be."""

    status: str
    id: int


@dataclass
class JudgedChanges:
    """How the changes of a period have reached their watchers."""

    pushes: int = 0
    expected: int = 0  # deliveries of single changes to clients that watched all the time
    missing: int = 0  # of these; a later change of the same user may have taken their place
    # From the client's send to the push, by the name of the code
    latencies_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    changes: Counter[str] = field(default_factory=Counter)  # by the name of the code
    unmatched: int = 0  # events that no client has caused, and what clients did without an event


def compare_views(views: Iterable[Views], truth: Mapping[int, TrueState], found: BrokenPromises) -> int:
    """Note each view that differs from the truth; return how many were compared.

    A view of a user whose id is not known any more (0) is compared by its status.
    """
    compared = 0
    for some in views:
        for user in range(some.graph.first, some.graph.first + len(some.graph)):
            if not some.is_watching[user - some.graph.first]:
                continue
            edges = some.graph.edges(user)
            for edge in edges:
                true = truth[some.graph.friends[edge]]
                status = STATUSES[some.statuses[edge]]
                if status != true.status or (true.id and some.ids[edge] != true.id):
                    example = (
                        f"{user} sees {some.graph.friends[edge]} as {status} {some.ids[edge]}, not {true}"
                    )
                    found.note("views that differ from the truth", example)
            compared += len(edges)
    return compared


def judge_deliveries(
    graph: FriendGraph, changes: Sequence[UserChange], logs: Sequence[CrowdLog], is_steady: Sequence[int]
) -> JudgedChanges:
    """Return what became of the changes of a period.

    Args:
        changes: in the order of their ids.
        is_steady: by user, whether the client has watched all the time on one connection.
    """
    found = JudgedChanges(pushes=sum(len(log.push_at) for log in logs))
    acted = _actions(logs)
    begun: dict[tuple[int, int], tuple[float, str]] = {}  # when the client sent what caused it
    for change in changes:
        found.changes[Code(change.code).reason] += 1
        pending = acted[change.user, change.code]
        if not pending:
            found.unmatched += 1
        elif (moment := pending.popleft()) and change.code not in UNTIMED:
            begun[change.user, change.id] = moment, Code(change.code).reason
    found.unmatched += sum(map(len, acted.values()))
    got = Counter[tuple[int, int]]()
    for log in logs:
        for watcher, user, id, at in zip(
            log.push_watchers, log.push_users, log.push_ids, log.push_at, strict=True
        ):
            got[user, id] += is_steady[watcher]
            if cause := begun.get((user, id)):
                moment, reason = cause
                found.latencies_s[reason].append(at - moment)
    for change in changes:
        expected = sum(map(is_steady.__getitem__, graph.friends_of(change.user)))
        found.expected += expected
        found.missing += max(0, expected - got[change.user, change.id])
    return found


def _actions(logs: Iterable[CrowdLog]) -> dict[tuple[int, int], deque[float]]:
    """Return the times of what clients did, by user and code."""
    found: dict[tuple[int, int], deque[float]] = defaultdict(deque)
    for log in logs:
        for user, code, at in zip(log.action_users, log.action_codes, log.action_at, strict=True):
            found[user, code].append(at)
    return found


def changes_of(logs: Iterable[CrowdLog]) -> list[UserChange]:
    """Return the changes that clients have made themselves, in the order of time."""
    found = [
        (at, UserChange(user, code, id))
        for log in logs
        for user, code, id, at in zip(
            log.action_users, log.action_codes, log.action_ids, log.action_at, strict=True
        )
    ]
    return [change for _, change in sorted(found)]
