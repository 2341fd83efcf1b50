"""What a full outbox does not take: the newest changes of a shard, until everything before them is written.

From the first change on that found the outbox full, all changes of the shard are *skipped*, even when there
is room again, because a later change must not overtake a skipped one. Once everything before them is written,
the live sessions follow from what Redis has and what was skipped: then a new generation of the shard begins,
registers them, and reports the number of skipped changes in the stream, as a gap.

    taking ──full──► skipping ──all before is written, an opening is made──► taking, and the opening carries
                                                                             the number until it is accepted

Until then live sessions are missing in Redis. So nothing may be retired or compared meanwhile.
"""

import math
from dataclasses import dataclass
from typing import Final

from presence.core.changes import Change

# Least time between two resyncs for skipped changes: an outbox that other shards keep full overflows again
# immediately, and each resync scans all sessions.
RESYNC_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class SkippedChanges:
    """Changes of one shard that were skipped because the outbox was full."""

    number: int
    from_ms: int  # Unix milliseconds of the earliest decision among them
    to_ms: int  # Unix milliseconds of the latest
    from_at: float  # earliest `Change.at` among them, monotonic seconds; an earlier login was not skipped

    def merged(self, other: "SkippedChanges | None") -> "SkippedChanges":
        if other is None:
            return self
        return SkippedChanges(
            self.number + other.number,
            min(self.from_ms, other.from_ms),
            max(self.to_ms, other.to_ms),
            min(self.from_at, other.from_at),
        )


class Overflow:
    """The changes of one shard that were skipped.

    Attributes:
        is_skipping: whether all changes are skipped until an opening.
        opened_at: monotonic seconds of the last opening.
    """

    def __init__(self) -> None:
        self.is_skipping = False
        self._skipped: SkippedChanges | None = None  # since the last opening that carries skipped changes
        self._carried: SkippedChanges | None = None  # by openings, until one is accepted
        self.opened_at = -math.inf

    def skip(self, change: Change) -> None:
        """Skip a change, and all later ones."""
        self.is_skipping = True
        self._skipped = SkippedChanges(1, change.at_ms, change.at_ms, change.at).merged(self._skipped)

    @property
    def skipped_from(self) -> float:
        """The earliest `Change.at` skipped since the last opening; infinity if none."""
        return self._skipped.from_at if self._skipped else math.inf

    @property
    def resync_at(self) -> float:
        """Monotonic seconds from which a resync may begin; infinity while nothing is skipped."""
        return self.opened_at + RESYNC_PAUSE_S if self.is_skipping else math.inf

    def open(self, now: float, *, all_written: bool) -> SkippedChanges | None:
        """Note that an opening is made; return the skipped changes that it carries.

        Args:
            now: monotonic seconds.
            all_written: whether everything before the skipped changes is written. Otherwise they are left to
                a later opening.
        """
        self.opened_at = now
        if all_written:
            if self._skipped:
                self._carried = self._skipped.merged(self._carried)
            self._skipped, self.is_skipping = None, False
        return self._carried

    def opening_accepted(self) -> SkippedChanges | None:
        """Return the skipped changes that the accepted opening has reported."""
        reported, self._carried = self._carried, None
        return reported
