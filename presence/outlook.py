"""When whose time is up: the next slots of the wheel as operators see them."""

import math
from collections.abc import Hashable
from typing import Any, Final, TypeVar

from presence.ticks import Ticks
from presence.wheel import TimingWheel

K = TypeVar("K", bound=Hashable)

SPARE_SLOTS: Final = 3  # a deadline is put into the slot after it, and the first slots may be overdue
SLOTS_MAX: Final = 1200  # ten minutes of the usual slots: some 4 KB, and 0.1 ms to count


def outlook(wheel: TimingWheel[K], ticks: Ticks, now: float, idle_timeout: float) -> dict[str, Any]:
    """Return how many are due in each of the next slots; it costs the same however many there are.

    Args:
        wheel: who is due when.
        ticks: its slots.
        now: monotonic seconds.
        idle_timeout: T, seconds: as far as the slots go, if that are not too many.

    Returns:
        `slot_s`; `next_s`: seconds until the first of `sizes` is due, 0 if it is overdue; `sizes`: of the
        slots that follow each other, soonest first; `later`: how many are due after these.
    """
    slots = math.ceil(idle_timeout / ticks.slot_s) + SPARE_SLOTS
    sizes = wheel.slot_sizes(min(slots, SLOTS_MAX))
    return {
        "slot_s": ticks.slot_s,
        "next_s": max(0.0, ticks.starts(wheel.cursor + 1) - now),
        "sizes": sizes,
        "later": len(wheel) - sum(sizes),
    }
