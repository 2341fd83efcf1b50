"""The data of the live page, from the answers of workers and Redis: snapshots, history, and rates. Pure.

Rates are computed per worker between two of its own answers, so that a worker that did not answer for a while
causes no peak, and a replaced one starts at zero.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from presence.admin.workers import Sample, WorkerAnswer
from presence.store.health import RedisHealth
from presence.store.node_states import NodeState

Point: TypeAlias = Sequence[float | None]
"""Unix ms, users online, sessions, connections; per second: packets, users come, users gone, logins."""

STEP_S: Final = 1
POINTS: Final = 600  # ten minutes of a page that is watched
LONG_STEP_S: Final = 60
LONG_POINTS: Final = 1440  # a day; both rings together take some 300 KB


class History:
    """Two ring buffers: of seconds and of minutes."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=POINTS)
        self._minutes: deque[Point] = deque(maxlen=LONG_POINTS)
        self._pending: list[Point] = []

    def add(self, point: Point) -> None:
        """Add a point: of one second, or of several while no page is open.

        After the clock was set back, it replaces the points that are later.
        """
        at_ms = point[0] or 0
        for points in (self._points, self._minutes, self._pending):
            while points and (points[-1][0] or 0) >= at_ms:
                points.pop()
        self._points.append(point)
        if self._pending and at_ms // (LONG_STEP_S * 1000) != (self._pending[0][0] or 0) // (
            LONG_STEP_S * 1000
        ):
            self._minutes.append(_mean(self._pending))
            self._pending = []
        self._pending.append(point)

    def report(self) -> dict[str, Any]:
        """Return both in the form that the page expects."""
        return {
            "history": {"step_s": STEP_S, "points": list(self._points)},
            "long_history": {"step_s": LONG_STEP_S, "points": list(self._minutes)},
        }


def _mean(points: Sequence[Point]) -> Point:
    """Return the point of a minute: the first time, and the means of the known values."""
    means: list[float | None] = [points[0][0]]
    for column in list(zip(*points, strict=True))[1:]:
        known = [value for value in column if value is not None]
        means.append(round(sum(known) / len(known), 2) if known else None)
    return means


class Speeds(NamedTuple):
    """Rates per second, of all workers that answered twice; None: none did."""

    packets: float | None = None
    online: float | None = None
    offline: float | None = None
    logins: float | None = None
    refusals: float | None = None


class Rates:
    """Computes rates from the last answer of each worker."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[str, float, tuple[float, ...]]] = {}

    def update(self, answers: Iterable[WorkerAnswer]) -> Speeds:
        found: list[list[float]] = []
        for answer in answers:
            if answer.sample is None:
                continue
            process = f"{answer.sample.get('pid')} {answer.sample.get('started_ms')}"
            counts = _counts(answer.sample)
            before = self._before.get(answer.number)
            self._before[answer.number] = (process, answer.at, counts)
            if before is None or answer.at <= before[1]:
                continue
            since = before[2] if before[0] == process else (0,) * len(counts)
            took_s = answer.at - before[1]
            found.append([max(0, now - then) / took_s for now, then in zip(counts, since, strict=True)])
        if not found:
            return Speeds()
        return Speeds(*(round(sum(column), 2) for column in zip(*found, strict=True)))


def _counts(sample: Sample) -> tuple[float, ...]:
    """Return the counters for `Speeds`, in its order."""
    core, transitions = part(sample, "core"), part(sample, "transitions")
    return (
        number(core.get("keepalives")) + number(core.get("other_packets")),
        total(transitions.get("online")),
        total(transitions.get("offline")),
        number(core.get("logins")),
        total(core.get("refused")),  # the total; `admission` has it by limit
    )


def part(sample: Sample, name: str) -> Mapping[str, Any]:
    """Return a group of a sample; empty if the worker, perhaps of another version, has none."""
    found = sample.get(name)
    return found if isinstance(found, Mapping) else {}


def number(value: object) -> float:
    """Return a number of a sample, 0 if there is none."""
    return value if isinstance(value, int | float) else 0


def total(counts: object) -> float:
    """Return the sum of a map of numbers."""
    return sum(map(number, counts.values())) if isinstance(counts, Mapping) else 0


@dataclass(frozen=True, slots=True)
class RedisStatus:
    """The last values from Redis; None: it did not answer."""

    online: int | None = None  # number of users online
    nodes: Sequence[NodeState] | None = None  # those with a lease
    redis: RedisHealth | None = None  # its health; None: not read yet
    rooms: Mapping[str, int] | None = None  # the largest, and the number of members of each
    has_rooms: bool = False  # whether they are read


def point_of(at_ms: int, answers: Sequence[WorkerAnswer], speeds: Speeds, online: int | None) -> Point:
    """Return the point of this moment for `History`."""
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


def snapshot(
    at_ms: int, answers: Sequence[WorkerAnswer], speeds: Speeds, cluster: RedisStatus
) -> dict[str, Any]:
    """Return the data of the event `sample`."""
    samples = _samples(answers)
    point = point_of(at_ms, answers, speeds, cluster.online)
    _, online, sessions, connections, packets, *_ = point
    rooms = None if cluster.rooms is None else [{"name": n, "count": c} for n, c in cluster.rooms.items()]
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
        **({"rooms": rooms} if cluster.has_rooms else {}),
    }


def summed_wheel(wheels: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the sum of the wheels of all workers; slots due at about the same time are merged."""
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
    """Return the sum of histograms with the same bounds; others are ignored."""
    histograms = [each for each in histograms if each.get("bounds")]
    if not histograms:
        return None
    bounds = histograms[0]["bounds"]
    alike = [each for each in histograms if each["bounds"] == bounds]
    counts = [sum(column) for column in zip(*(each["counts"] for each in alike), strict=True)]
    return {"bounds": bounds, "counts": counts, "sum": sum(number(each.get("sum")) for each in alike)}


def _samples(answers: Sequence[WorkerAnswer]) -> list[Sample]:
    return [answer.sample for answer in answers if answer.sample is not None]


def _sum(samples: Sequence[Sample], name: str) -> int | None:
    return sum(int(number(sample.get(name))) for sample in samples) if samples else None


def _worker(answer: WorkerAnswer) -> dict[str, Any]:
    sample = answer.sample or {}
    process = part(sample, "process")
    return {
        "worker": answer.number,
        "answering": answer.sample is not None,
        **{name: sample.get(name) for name in ("node", "pid", "sessions", "connections", "readiness")},
        **{name: process.get(name) for name in ("rss_bytes", "open_fds", "max_fds")},
        "cpu_s": round(number(process.get("cpu_user_s")) + number(process.get("cpu_system_s")), 3),
        "outbox": part(sample, "outbox").get("pending"),
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
