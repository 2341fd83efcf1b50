"""What each technique must do here, and under which names they are compared."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

NAMES: Final = {
    "wheel": "presence wheel",
    "service": "`TimerService`",
    "heap": "heapq, lazy deletion",
    "rearmed": "heapq, re-armed late",
    "trio": "trio deadlines",
    "redis-wheel": "`RedisWheel`",
    "ring": "`RingTimer`",
    "queue": "`DelayQueue`",
    "expiry": "`ExpiryTimer`",
}
IN_REDIS: Final = ("redis-wheel", "ring", "queue", "expiry")
NOTHING: Final = "nothing"  # does nothing: what the player itself costs


class Found(NamedTuple):
    """A user who was silent for T, and the monotonic time at which it was noticed."""

    uid: str
    at: float


class Technique(Protocol):
    """Idle detection. Time is monotonic seconds, as an argument; what keeps its own clock leaves it alone."""

    def touch(self, uid: str, now: float) -> None:
        """The user has sent something: he is online, for T from now on."""

    def touch_many(self, uids: Sequence[str], now: float) -> None:
        """The same for many at once, in the way that the technique has for that."""

    def forget(self, uid: str) -> None:
        """The user has logged out: tell nothing."""

    def due(self, now: float) -> Iterable[Found]:
        """Tell who has been silent for T since his last touch; each once. To be gone through to its end."""

    def next_look(self, now: float) -> float:
        """Return when `due` wants to be called next."""
