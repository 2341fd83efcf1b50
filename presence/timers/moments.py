"""Ticks as moments of a clock, exact in floats: what is due is never asked for early."""


class Moments:
    """Tick n begins at origin + n · tick_s.

    Args:
        origin: when tick 0 begins, seconds.
        tick_s: seconds of a tick.
    """

    __slots__ = ("_origin", "_tick_s")

    def __init__(self, origin: float, tick_s: float) -> None:
        self._origin = origin
        self._tick_s = tick_s

    def starts(self, tick: int) -> float:
        """Return when a tick begins."""
        return self._origin + tick * self._tick_s

    def begun(self, now: float) -> int:
        """Return the last tick that has begun: by `now` at the latest, in floats as in fact."""
        tick = self.at_or_after(now)
        return tick if self._origin + tick * self._tick_s <= now else tick - 1

    def at_or_after(self, deadline: float) -> int:
        """Return the first tick that begins at `deadline` or later; `deadline` is not before the origin."""
        tick = int((deadline - self._origin) / self._tick_s)
        return tick + 1 if self._origin + tick * self._tick_s < deadline else tick
