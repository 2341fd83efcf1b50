"""What the live page shows of a moment, from the answers of workers and of Redis. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from presence.admin.history import Point
from presence.admin.rates import Speeds, number, part, total
from presence.admin.workers import Answer, Sample
from presence.store.health import RedisHealth
from presence.store.nodes import NodeState


@dataclass(frozen=True, slots=True)
class Cluster:
    """What Redis said last; None: it did not answer then.

    Attributes:
        online: users.
        nodes: those with a lease.
        redis: how it is itself; None: it was not asked yet.
    """

    online: int | None = None
    nodes: Sequence[NodeState] | None = None
    redis: RedisHealth | None = None


def point_of(at_ms: int, answers: Sequence[Answer], speeds: Speeds, online: int | None) -> Point:
    """Return the point of this moment, see `presence.admin.history`."""
    samples = _samples(answers)
    return (
        at_ms,
        online,
        _sum(samples, "sessions"),
        _sum(samples, "connections"),
        speeds.packets,
        speeds.online,
        speeds.offline,
        speeds.logins,
    )


def picture(at_ms: int, answers: Sequence[Answer], speeds: Speeds, cluster: Cluster) -> dict[str, Any]:
    """Return the data of the event `sample`."""
    samples = _samples(answers)
    point = point_of(at_ms, answers, speeds, cluster.online)
    _, online, sessions, connections, packets, *_ = point
    return {
        "at_ms": at_ms,
        "point": point,
        "online": online,
        "sessions": sessions,
        "connections": connections,
        "packets_per_s": packets,
        "logins_per_s": speeds.logins,
        "refusals_per_s": speeds.refusals,
        "wheel": summed_wheel([part(sample, "wheel") for sample in samples]),
        "workers": [_worker(answer) for answer in answers],
        "delays": summed_histogram([part(part(s, "histograms"), "detection_delay") for s in samples]),
        "nodes": None if cluster.nodes is None else _nodes(cluster.nodes),
        "redis": None if cluster.redis is None else asdict(cluster.redis),
    }


def summed_wheel(wheels: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the wheels of all workers as one: slots that are due at about the same time are one slot."""
    wheels = [wheel for wheel in wheels if wheel.get("sizes") and number(wheel.get("slot_s")) > 0]
    if not wheels:
        return None
    first = min(wheels, key=lambda wheel: number(wheel["next_s"]))
    slot_s, next_s = number(first["slot_s"]), number(first["next_s"])
    sizes: list[int] = []
    for wheel in wheels:
        offset = round((number(wheel["next_s"]) - next_s) / slot_s)
        sizes += [0] * (offset + len(wheel["sizes"]) - len(sizes))
        for place, size in enumerate(wheel["sizes"], offset):
            sizes[place] += size
    later = sum(int(number(wheel.get("later"))) for wheel in wheels)
    return {"slot_s": slot_s, "next_s": next_s, "sizes": sizes, "later": later}


def summed_histogram(histograms: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the sum of histograms that have the same bounds; others are left out."""
    histograms = [each for each in histograms if each.get("bounds")]
    if not histograms:
        return None
    bounds = histograms[0]["bounds"]
    alike = [each for each in histograms if each["bounds"] == bounds]
    counts = [sum(column) for column in zip(*(each["counts"] for each in alike), strict=True)]
    return {"bounds": bounds, "counts": counts, "sum": sum(number(each.get("sum")) for each in alike)}


def _samples(answers: Sequence[Answer]) -> list[Sample]:
    return [answer.sample for answer in answers if answer.sample is not None]


def _sum(samples: Sequence[Sample], name: str) -> int | None:
    return sum(int(number(sample.get(name))) for sample in samples) if samples else None


def _worker(answer: Answer) -> dict[str, Any]:
    sample = answer.sample or {}
    process = part(sample, "process")
    return {
        "worker": answer.number,
        "answering": answer.sample is not None,
        **{name: sample.get(name) for name in ("node", "pid", "sessions", "connections", "readiness")},
        **{name: process.get(name) for name in ("rss_bytes", "open_fds", "max_fds")},
        "cpu_s": round(number(process.get("cpu_user_s")) + number(process.get("cpu_system_s")), 3),
        "outbox": part(sample, "outbox").get("held"),
        "outbox_oldest_s": sample.get("outbox_oldest_s"),
        "loop_lag": part(part(sample, "histograms"), "loop_lag") or None,
        "wheel": part(sample, "wheel") or None,
        "ended": total(part(sample, "core").get("ended")),
    }


def _nodes(nodes: Sequence[NodeState]) -> list[dict[str, Any]]:
    sessions = sum(node.sessions or 0 for node in nodes)
    return [
        {**asdict(node), "share": round((node.sessions or 0) / sessions, 4) if sessions else None}
        for node in nodes
    ]
