"""A worker's sample: all its figures of one moment, as one map for operators.

Sums only: counters rise while the process lives, gauges say how it stands. Making one costs the same however
many sessions there are. What operators are told (see `presence.admin`) is made from these and from Redis.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

VERSION: Final = 1  # a process that serves operators and finds another one here says so


class Readiness(Enum):
    """Whether a worker can serve clients, and what keeps it from that."""

    STARTING = "starting"
    READY = "ready"
    REDIS_AWAY = "redis_away"  # its lease has ended, and it serves clients from memory
    FENCED = "fenced"  # other nodes took it for dead, and its sessions are not all registered anew
    DRAINING = "draining"

    @property
    def serves(self) -> bool:
        """Whether clients may be sent here. Without Redis they may: an outage of Redis hits all nodes."""
        return self in {Readiness.READY, Readiness.REDIS_AWAY}


@dataclass(frozen=True, slots=True)
class Parts:
    """What a sample is made of.

    Attributes:
        worker: the worker's number; 0 of a server with one process.
        at_ms: Unix milliseconds now.
        described: who this is: node, pid, host, address, version, started_ms, connections, readiness,
            sessions.
        report: the groups of counters that the log has, too.
        operators: what only operators are told: transitions, wheel, histograms, outbox_oldest_s.
        footprint: see `Footprint.report`.
        inquiries: questions so far: asked, dropped.
    """

    worker: int
    at_ms: int
    described: Mapping[str, Any]
    report: Mapping[str, Any]
    operators: Mapping[str, Any]
    footprint: Mapping[str, Any]
    inquiries: Mapping[str, int]


def sample(parts: Parts) -> dict[str, Any]:
    """Return the sample; MessagePack can hold it."""
    return {
        "v": VERSION,
        "worker": parts.worker,
        "at_ms": parts.at_ms,
        **parts.described,
        **parts.report,
        **parts.operators,
        "process": dict(parts.footprint),
        "inquiries": dict(parts.inquiries),
    }
