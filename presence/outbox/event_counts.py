"""Counts of the events that Redis has written for this node, by type and reason: pure.

Only Redis knows whether the end of a session is a transition of its user. So its scripts count the events
that they write, and return the counts. If an answer is lost, its counts are returned again when the batch is
repeated, or in the batch history of the previous generation (see `shard_writer`), and are counted once.
These events are counted by no node:

* those of a sweep or a retirement whose answer is lost, because it is never repeated in the same form; nor
  those of a retirement whose answer arrives after the node has given up its id;
* those of a batch whose answer is lost, if more openings follow it than the batch history holds
  (`BATCH_HISTORY_LIMIT` of apply.lua);
* the gap written by the first opening under a new id, if its answer is lost and a second opening follows:
  that one returns the batch history of the old id.
"""

from collections.abc import Iterable
from typing import NamedTuple

from presence.protocol.constants import Code

TYPES = ("online", "offline", "away", "update", "device", "rooms", "gap")


class EventCount(NamedTuple):
    """Events of one type and reason that a call has written."""

    type: str
    code: int  # of the reason; 0: none
    n: int


class Transitions:
    """Counters of one node's events; they only rise."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {type: {} for type in TYPES}

    def count_events(self, events: Iterable[EventCount]) -> None:
        for type, code, n in events:
            counts, reason = self._counts.setdefault(type, {}), _reason(code) if code else type
            counts[reason] = counts.get(reason, 0) + n

    def report(self) -> dict[str, dict[str, int]]:
        """Return the counters by type and reason; a gap's reason is `gap`."""
        return {type: dict(counts) for type, counts in self._counts.items()}


def _reason(code: int) -> str:
    try:
        return Code(code).reason
    except ValueError:  # of a later version
        return str(code)
