"""When the time of descriptors is up: logins, slow readers, drains."""

import trio

from presence.clock import Clock
from presence.wheel import TimingWheel

CHORE_S = 0.1  # resolution


class Deadlines:
    """At most one deadline per descriptor; nothing to do wakes nobody.

    Args:
        clock: monotonic time.

    Attributes:
        came: set when a deadline is; `wait` renews it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel: TimingWheel[int] = TimingWheel(256, self._tick())
        self.came = trio.Event()

    def __len__(self) -> int:
        return len(self._wheel)

    def set(self, fd: int, seconds: float) -> None:
        """Set the moment when a descriptor's time is up, in place of an earlier one."""
        if not self._wheel:  # nobody has driven the wheel meanwhile
            self._wheel.expire(self._tick(), 0)
        self._wheel.touch(fd, int((self._clock.now() + seconds) / CHORE_S) + 1)
        self.came.set()

    def forget(self, fd: int) -> None:
        """Give a descriptor all the time that it wants."""
        self._wheel.forget(fd)

    def take_overdue(self, limit: int) -> list[int]:
        """Return descriptors whose time is up, at most `limit`; the deadline is then forgotten."""
        return self._wheel.expire(self._tick(), limit)

    async def wait(self) -> None:
        """Return when somebody's time may be up."""
        if not self._wheel:
            self.came = trio.Event()
            await self.came.wait()
        await trio.sleep(CHORE_S)

    def _tick(self) -> int:
        return int(self._clock.now() / CHORE_S)
