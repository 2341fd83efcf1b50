"""How quickly counters of workers grow. Pure.

Each worker's growth is taken between two of its own answers: so one that did not answer for a while makes no
peak when it does again, and one that was replaced begins at zero.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from presence.admin.workers import Answer, Sample


class Speeds(NamedTuple):
    """By the second, of all workers that answered twice; None: none did."""

    packets: float | None = None
    online: float | None = None
    offline: float | None = None
    logins: float | None = None
    refusals: float | None = None


class Rates:
    """Remembers what each worker said last."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[str, float, tuple[float, ...]]] = {}

    def take(self, answers: Iterable[Answer]) -> Speeds:
        """Return how quickly things go, up to these answers."""
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
    """Return what `Speeds` is made of, in its order."""
    core, transitions = part(sample, "core"), part(sample, "transitions")
    return (
        number(core.get("beats")) + number(core.get("frames")),
        total(transitions.get("online")),
        total(transitions.get("offline")),
        number(core.get("logins")),
        total(core.get("refused")),  # all of them; `admission` only tells by which limit
    )


def part(sample: Sample, name: str) -> Mapping[str, Any]:
    """Return a group of a sample; empty where the worker, of another version maybe, has none."""
    found = sample.get(name)
    return found if isinstance(found, Mapping) else {}


def number(value: object) -> float:
    """Return a number of a sample, 0 where there is none."""
    return value if isinstance(value, int | float) else 0


def total(counts: object) -> float:
    """Return the sum of a map of numbers."""
    return sum(map(number, counts.values())) if isinstance(counts, Mapping) else 0
