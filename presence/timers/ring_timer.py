"""A ring of slots in Redis, which any number of processes turn together."""

from typing import Final

import msgpack

from presence.store.script_runner import Scripting
from presence.timers.interface import MAX_EVENTS, TimerError
from presence.timers.script_batches import delay_ms
from presence.timers.shared_timer import Leasing, SharedTimer

MAX_SLOTS: Final = 86_400
MAX_TICK_S: Final = 3600.0


class RingTimer(SharedTimer):
    """Events of any delay, in ticks, shared by any number of processes; a `LeasedTimer`.

    Never early by Redis' clock: an event is of the first tick that begins at or after its time, so it is at
    most a tick late, and as late as the workers look. Nobody leads: the hand of the ring is in Redis, and
    whoever asks for what is due moves it over the slots that have passed, also while no worker lived. At
    least once: what a worker that died had claimed is handed out again after its lease. Adding and handing
    out cost O(log k) an event, k in its slot; events of later laps are not touched. A slot of many is handed
    out in slices.

    The idea, slots as sorted sets whose score is the lap, is that of a ring queue in Redis of which Chinese
    blogs tell: it counts laps down one by one in each slot, and skips a slot whenever its process is late.

    Args:
        scripting: the connections.
        base: what the keys begin with, see `Keys.timer`.
        leasing: how events are handed out.
        slots: of the ring; delays beyond slots x tick_s go round more than once. Kept in Redis: a timer has
            one number of slots and one tick, and whoever comes with others is refused.
        tick_s: to the millisecond.
        events_max: how many it may hold, dead letters among them.

    Raises:
        TimerError: `slots` or `tick_s` are out of bounds. By its calls: the timer in Redis has others.
    """

    def __init__(
        self,
        scripting: Scripting,
        base: str,
        leasing: Leasing | None = None,
        *,
        slots: int = 60,
        tick_s: float = 1.0,
        events_max: int = MAX_EVENTS,
    ) -> None:
        if not 1 <= slots <= MAX_SLOTS:
            raise TimerError(f"slots {slots!r} is not between 1 and {MAX_SLOTS}")
        if not 0.001 <= tick_s <= MAX_TICK_S:
            raise TimerError(f"tick_s {tick_s!r} is not between 0.001 and {MAX_TICK_S:.0f}")
        variant = msgpack.packb([slots, delay_ms(tick_s), f"{base}:slot:"])
        super().__init__(scripting, base, leasing or Leasing(), events_max, index=(variant, "ring"))
