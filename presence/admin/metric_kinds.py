"""What a metric is: its name and type by Prometheus' rules, its labels, and where its numbers come from.

A series that may ever be is there from the start, with 0: Prometheus sees the first event of a kind as a step
from 0 to 1, and an alert on `rate()` does not miss it. What a table does not know, of a worker with newer
software say, counts under the label `other`, so that sums stay right and no label is a stranger's to choose.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from protocol import Code

PREFIX: Final = "presence_"
OTHER: Final = "other"

Path = tuple[str, ...]
"""Where something is in a worker's sample: the keys of nested maps."""

Labels = tuple[str, ...]


class Kind(StrEnum):
    """Types of metrics, by the names that Prometheus has for them; an `info` is a gauge of 1 with texts."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: as it is asked for: of a counter with `_total`, of an info with `_info`.
        kind: its type.
        help: one sentence, without the full stop.
        labels: by name; the first is `worker` where each worker has its own series.
        parts: for a worker's metric: where the number is, by the values of the labels after `worker`.
        counts: instead of `parts`, a map in the sample from reasons to numbers, as deep as there are labels.
        known: with `counts`, the values of labels that are there from the start.
        measure: makes the number of what is found.
    """

    name: str
    kind: Kind
    help: str
    labels: Labels = ()
    parts: Mapping[Labels, Path] = field(default_factory=dict)
    counts: Path = ()
    known: tuple[Labels, ...] = ()
    measure: Callable[[Any], float] = float

    @property
    def is_of_workers(self) -> bool:
        """Whether its numbers are in workers' samples."""
        return bool(self.parts or self.counts)


def counter(name: str, text: str, path: str) -> Metric:
    """Return a worker's counter."""
    return Metric(_named(f"{name}_total"), Kind.COUNTER, text, ("worker",), {(): _path(path)})


def gauge(name: str, text: str, path: str, measure: Callable[[Any], float] = float) -> Metric:
    """Return a worker's gauge."""
    return Metric(_named(name), Kind.GAUGE, text, ("worker",), {(): _path(path)}, measure=measure)


def histogram(name: str, text: str, path: str) -> Metric:
    """Return a worker's histogram."""
    return Metric(_named(name), Kind.HISTOGRAM, text, ("worker",), {(): _path(path)})


def counters(name: str, text: str, label: str, parts: Mapping[str, str]) -> Metric:
    """Return a counter of a worker whose series are at different places of the sample."""
    return Metric(_named(f"{name}_total"), Kind.COUNTER, text, ("worker", label), _places(parts))


def gauges(name: str, text: str, label: str, parts: Mapping[str, str]) -> Metric:
    """Return a gauge of a worker whose series are at different places of the sample."""
    return Metric(_named(name), Kind.GAUGE, text, ("worker", label), _places(parts))


def by_reason(name: str, text: str, path: str, reasons: Iterable[Code | str]) -> Metric:
    """Return a counter of a worker that the sample has by reason."""
    known = tuple((reason.reason if isinstance(reason, Code) else reason,) for reason in reasons)
    return Metric(
        _named(f"{name}_total"), Kind.COUNTER, text, ("worker", "reason"), counts=_path(path), known=known
    )


def own(name: str, kind: Kind, text: str, *labels: str) -> Metric:
    """Return a metric whose numbers are in no worker's sample; see `presence.admin.own_figures`."""
    suffix = {Kind.COUNTER: "_total", Kind.INFO: "_info"}.get(kind, "")
    return Metric(_named(f"{name}{suffix}"), kind, text, labels)


def _named(name: str) -> str:
    return f"{PREFIX}{name}"


def _places(parts: Mapping[str, str]) -> dict[Labels, Path]:
    return {(value,): _path(path) for value, path in parts.items()}


def _path(dotted: str) -> Path:
    return tuple(dotted.split("."))
