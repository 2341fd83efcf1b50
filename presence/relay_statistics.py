"""What a relay counts, for logs and operators."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """Counters since the start, and how things stand.

    Attributes:
        node: the node's id now.
        batches: batches acknowledged.
        items: items in them, registrations of a resync included.
        retries: rounds that failed and were made again.
        resyncs: resyncs of single shards.
        differences: sessions that were not on record as they were here, or the other way round.
        errors: answers that waiting may not cure.
        last_error: the last failure's text; "" if there was none.
        connected: whether every shard answers.
        away_since: monotonic seconds since when one does not; None while connected.
        backlog: changes that wait or are under way.
    """

    node: str
    batches: int
    items: int
    retries: int
    resyncs: int
    differences: int
    errors: int
    last_error: str
    connected: bool
    away_since: float | None
    backlog: int
