"""What the streams say, in the order in which Redis took it, and what Redis forgot in between."""

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from presence.subscriber.events import Entry

ROUNDED_S = 0.002  # the milliseconds of ids and of decisions
OF_USERS: Final = frozenset({"online", "offline", "away", "update"})


class Event(NamedTuple):
    """An entry of a stream; moments are monotonic seconds of this process.

    Attributes:
        since_id: the id of the online event of the period; of an online event and a gap "".
        decided: between which moments it was decided, by the clocks of this machine.
        stood: when Redis took it.
        fields: as they were written, of an event of a user.
    """

    shard: int
    id: str
    type: str
    uid: str
    session: str
    node: str
    code: int
    since_id: str
    decided: tuple[float, float]
    stood: float
    fields: Mapping[str, str] = {}


class Kept(NamedTuple):
    """The state of this moment is kept under a number."""

    number: int
    stood: float


class Forgot(NamedTuple):
    """Redis went back to the state of a number; None: it has nothing."""

    number: int | None
    stood: float


Told = Event | Kept | Forgot


class WallClock:
    """The wall clock beside the monotonic one: the least and the greatest difference that was seen."""

    def __init__(self) -> None:
        self.now = self.low = self.high = _difference()

    def sample(self) -> None:
        """Look again."""
        self.now = _difference()
        self.low, self.high = min(self.low, self.now), max(self.high, self.now)

    def bounds(self, unix_ms: int) -> tuple[float, float]:
        """Return the monotonic moments between which a clock of this run may have shown it."""
        return unix_ms / 1000 - self.high - ROUNDED_S, unix_ms / 1000 - self.low + ROUNDED_S


def _difference() -> float:
    return time.time() - time.monotonic()


def event_of(entry: Entry, clock: WallClock) -> Event:
    """Return what an entry says."""
    fields: Any = entry.fields
    stood = int(entry.id.partition("-")[0]) / 1000 - clock.now
    if fields["type"] not in OF_USERS:
        return Event(
            entry.shard,
            entry.id,
            fields["type"],
            "",
            "",
            fields.get("node", ""),
            0,
            "",
            (stood, stood),
            stood,
        )
    return Event(
        entry.shard,
        entry.id,
        fields["type"],
        fields["uid"],
        fields["session"],
        fields["node"],
        int(fields["code"]),
        fields.get("since_id", ""),
        clock.bounds(int(fields["at_ms"])),
        stood,
        fields,
    )
