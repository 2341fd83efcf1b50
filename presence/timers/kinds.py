"""The kinds of timers that processes share, by their names on the command line."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

from presence.store.keys import Keys
from presence.store.script_runner import Scripting
from presence.timers.delay_queue import DelayQueue
from presence.timers.expiry_timer import ExpiryTimer
from presence.timers.ring_timer import RingTimer
from presence.timers.shared_timer import Leasing, SharedTimer

KINDS: Final = ("ring", "queue", "expiry")


@dataclass(frozen=True, slots=True)
class TimerLocation:
    """Location and kind of a timer.

    Attributes:
        redis_url: URL of Redis.
        kind: one of `KINDS`.
        name: of the timer; a name is of one kind.
        prefix: prefix of all keys.
        slots, tick_s: of a ring, see `RingTimer`.
    """

    redis_url: str
    kind: str
    name: str
    prefix: str = "presence"
    slots: int = 60
    tick_s: float = 1.0

    @property
    def base(self) -> str:
        """Prefix of its keys."""
        return Keys(self.prefix).timer(self.name)

    @contextmanager
    def open(self, leasing: Leasing | None = None) -> Iterator[SharedTimer]:
        """Lend the timer, with connections of its own, for the length of a ``with`` block.

        Raises:
            TimerError: a setting is out of its bounds.
        """
        with closing(Scripting(self.redis_url)) as scripting:
            if self.kind == "ring":
                yield RingTimer(scripting, self.base, leasing, slots=self.slots, tick_s=self.tick_s)
            elif self.kind == "queue":
                yield DelayQueue(scripting, self.base, leasing)
            else:
                with closing(ExpiryTimer(scripting, self.base, leasing)) as timer:
                    yield timer
