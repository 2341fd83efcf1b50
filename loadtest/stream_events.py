"""What the streams say, in monotonic seconds of this process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from presence.subscriber.events import Entry

ROUNDING_S: Final = 0.002  # the milliseconds of ids, of decisions and of the wall clock's difference
USER_EVENT_TYPES: Final = frozenset({"online", "offline", "away", "update", "device", "rooms"})


class StreamEvent(NamedTuple):
    """An entry of a stream.

    Attributes:
        uid, session, code, since_id, node: as written; empty, or 0, without one.
        at_ms: when it was decided, as written.
        written_at: when Redis wrote it, by the clock of Redis.
        read_at: when this process had read it.
        decided_between: the times between which it was decided, by the clocks of this machine.
        fields: as written, of an event of a user.
    """

    id: str
    type: str
    uid: str
    session: str
    code: int
    at_ms: int
    since_id: str
    written_at: float
    read_at: float = 0.0
    decided_between: tuple[float, float] = (0.0, 0.0)
    shard: int = 0
    node: str = ""
    fields: Mapping[str, str] = {}


class WallClock:
    """The wall clock less the monotonic one: the present, least and greatest difference."""

    def __init__(self) -> None:
        self.offset = self.min_offset = self.max_offset = _wall_offset()

    def sample(self) -> None:
        self.offset = _wall_offset()
        self.min_offset, self.max_offset = (
            min(self.min_offset, self.offset),
            max(self.max_offset, self.offset),
        )

    def bounds(self, unix_ms: int) -> tuple[float, float]:
        """Return the monotonic times between which a clock of this run may have shown it."""
        return unix_ms / 1000 - self.max_offset - ROUNDING_S, unix_ms / 1000 - self.min_offset + ROUNDING_S


def _wall_offset() -> float:
    return time.time() - time.monotonic()


def stream_event(entry: Entry, clock: WallClock) -> StreamEvent:
    fields: Any = entry.fields
    written_at, read = int(entry.id.partition("-")[0]) / 1000 - clock.offset, time.monotonic()
    if fields["type"] not in USER_EVENT_TYPES:
        no_user = ("", "", 0, 0, "", written_at, read, (written_at, written_at))
        return StreamEvent(entry.id, fields["type"], *no_user, entry.shard, fields.get("node", ""))
    return StreamEvent(
        entry.id,
        fields["type"],
        fields["uid"],
        fields["session"],
        int(fields["code"]),
        int(fields["at_ms"]),
        fields.get("since_id", ""),
        written_at,
        read,
        clock.bounds(int(fields["at_ms"])),
        entry.shard,
        fields["node"],
        fields,
    )
