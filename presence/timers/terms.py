"""How a worker handles events: what an operator may say of it, in one piece."""

from dataclasses import dataclass, field
from typing import NamedTuple

from presence.timers.handing import Leasing
from presence.timers.kinds import Place


@dataclass(frozen=True, slots=True)
class Terms:
    """How a worker handles events.

    Attributes:
        leasing: how the timer hands them out, as it was told.
        concurrency: how many handlers run at once.
        batch: how many events are taken at once, at most.
        timeout_s: how long a handler may take before it counts as failed.
        drain_timeout_s: how long those that run may take once the worker is to stop.
    """

    leasing: Leasing = field(default_factory=Leasing)
    concurrency: int = 1
    batch: int = 100
    timeout_s: float = 300.0
    drain_timeout_s: float = 10.0


class Job(NamedTuple):
    """What a worker does.

    Attributes:
        place: of the timer.
        handler: its name, see `handlers.load`.
        terms: how events are handled.
        log_format, log_level: as `presence.logs.configure` takes them.
    """

    place: Place
    handler: str
    terms: Terms
    log_format: str = "auto"
    log_level: str = "info"
