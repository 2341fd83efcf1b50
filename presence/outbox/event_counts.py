"""How many transitions Redis has written for this node, by type and reason: pure.

Only Redis knows whether a session's end is the user's, so its scripts count what they write and return it
with the answer. An answer that is lost is found again, with its count, when the batch is sent once more or
in the trail of the generation before (see `shard_writer`), and is taken once. Not counted by anybody is what
Redis has written of

* a sweep or a retirement whose answer is lost: these are never sent again as they were; nor of a retirement
  whose answer comes after the node has given up its id;
* a batch whose answer is lost, and those of more openings after it than a trail holds (`TRAIL_LIMIT` of
  apply.lua), which then begins with a later one;
* the gap that a first opening under a new id tells, if its answer is lost and a second opening follows: what
  comes back with that is the trail of the old id.
"""

from collections.abc import Iterable
from typing import NamedTuple

from presence.protocol.constants import Code

TYPES = ("online", "offline", "away", "update", "gap")


class EventCount(NamedTuple):
    """Events that one call has written."""

    type: str  # of the events
    code: int  # their reason's; 0: they have none
    n: int  # how many


class Transitions:
    """The counters of one node; they only rise."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {type: {} for type in TYPES}

    def count_events(self, told: Iterable[EventCount]) -> None:
        """Count what a call has written."""
        for type, code, n in told:
            counts, reason = self._counts.setdefault(type, {}), _reason(code) if code else type
            counts[reason] = counts.get(reason, 0) + n

    def report(self) -> dict[str, dict[str, int]]:
        """Return how many there were by type and reason; a gap has no reason but itself."""
        return {type: dict(counts) for type, counts in self._counts.items()}


def _reason(code: int) -> str:
    try:
        return Code(code).reason
    except ValueError:  # of a later version
        return str(code)
