"""The figures of a row, with what the player itself costs taken off."""

from dataclasses import dataclass
from typing import Any

from loadtest.compare.results import Results
from loadtest.compare.technique import NOTHING


@dataclass(frozen=True)
class Figures:
    """What a technique costs at a size, and how well it finds the silent.

    Attributes:
        users: the size.
        process_us: CPU of the process for a touch, looks and tellings included, without the player's own.
        redis_us: the same of Redis.
        scripts: Redis ran for a touch, looks included.
        commands: it ran, those in scripts too.
        process_bytes, redis_bytes: for a user; of the process without his name, which all need.
        p50_ms, p99_ms, max_ms: lateness of tellings.
        early, false, missed: how many.
        lag_ms: how late the latest touch was made.
        touches_s: touches a second that were made.
    """

    users: int
    process_us: float
    redis_us: float
    scripts: float
    commands: float
    process_bytes: float
    redis_bytes: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    early: int
    false: int
    missed: int
    lag_ms: float
    touches_s: float

    @property
    def wrong(self) -> int:
        """Tellings that should not have been, or should have been."""
        return self.early + self.false + self.missed


def figures(results: Results, kind: str, users: int, *, batched: bool = False) -> Figures | None:
    """Return the figures of a run in which nothing was killed, or None if there is none."""
    row = results.played(kind, users, batched=batched)
    if row is None:
        return None
    report, verdict = row["report"], row["verdict"]
    used, touches = report["used"], max(1, report["touches"])
    player = results.played(NOTHING, users, batched=batched)
    own_us = _process_us(player["report"]) if player else 0.0
    return Figures(
        users=users,
        process_us=max(0.0, _process_us(report) - own_us),
        redis_us=used["redis_cpu_s"] / touches * 1e6,
        scripts=used["scripts"] / touches,
        commands=used["commands"] / touches,
        process_bytes=max(0.0, report["process_bytes"]),
        redis_bytes=report["redis_bytes"],
        p50_ms=verdict["p50_ms"],
        p99_ms=verdict["p99_ms"],
        max_ms=verdict["max_ms"],
        early=verdict["early"],
        false=verdict["false"],
        missed=verdict["missed"],
        lag_ms=report["lag_max_ms"],
        touches_s=report["touches"] / used["at"],
    )


def _process_us(report: dict[str, Any]) -> float:
    cpu_s: float = report["used"]["cpu_s"]
    touches: int = report["touches"]
    return cpu_s / max(1, touches) * 1e6
