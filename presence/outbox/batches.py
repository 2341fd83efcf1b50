"""The batches of one node in one shard: their numbers, and the one in flight."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from presence.outbox.replies import CounterSnapshot
from presence.outbox.steps import Batch, Counter

BATCH_ITEMS: Final = 512  # a few milliseconds of one Redis; larger batches save next to nothing


class BatchNumbers:
    """The numbers of a node's batches in a shard, and what Redis has acknowledged of them.

    Attributes:
        node: the node's id.
        acknowledged: the last number that Redis has acknowledged, perhaps of an earlier id; its generation
            is 0 if there is none.
        replication_id: that of Redis when the generation was opened; "" before the first.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.acknowledged = Counter(node, 0, 0)
        self.replication_id = ""
        self._generation = 0  # the highest of this id that was ever tried or seen

    def open(self) -> Counter:
        """Return the first number of a new generation."""
        self._generation += 1
        return Counter(self.node, self._generation, 1)

    def next(self) -> Counter:
        """Return the number after the acknowledged one."""
        return replace(self.acknowledged, n=self.acknowledged.n + 1)

    def note_generation(self, generation: int) -> None:
        """Note a generation that Redis has: the next one opened is higher."""
        self._generation = max(self._generation, generation)

    def forget(self) -> None:
        """Forget what was acknowledged, whatever became of it."""
        self.acknowledged = Counter(self.node, 0, 0)

    def rename(self, node: str) -> None:
        """Continue under a new node id; the next opening still names the acknowledged number of the old."""
        self.node, self._generation = node, 0
        if not self.acknowledged.generation:
            self.forget()

    def is_expected(self, counter: Counter, *, in_flight: bool) -> bool:
        """Whether Redis has the acknowledged number, or the one after it if a batch is in flight."""
        expected = self.acknowledged
        same = counter.generation == expected.generation
        return same and expected.n <= counter.n <= expected.n + in_flight

    def is_lost(self, batch_history: Iterable[CounterSnapshot]) -> bool:
        """Whether Redis lost batches that it had acknowledged, by the batch history in an opening's answer.

        It also has openings whose answers were lost; the number before them matters.
        """
        known = self.acknowledged
        before = (
            _order(each.counter)
            for each in batch_history
            if each.counter.node == known.node and each.counter.generation <= known.generation
        )
        return max(before, default=(0, 0)) < _order(known)

    def unanswered(self, batch_history: Iterable[CounterSnapshot]) -> list[CounterSnapshot]:
        """Return the batches and openings of the batch history whose answers were lost."""
        known = self.acknowledged
        return [
            each
            for each in batch_history
            if each.counter.node == known.node and _order(each.counter) > _order(known)
        ]


def _order(counter: Counter) -> tuple[int, int]:
    return counter.generation, counter.n


class BatchInFlight:
    """The one batch in flight, which is frozen once it was sent.

    | state | `batch` | a lost answer | heavy | accepted | the generation is left |
    | --- | --- | --- | --- | --- | --- |
    | none | None | | | | none |
    | sent | a batch | copied | sent, with fewer items | none | unconfirmed; none if it is an opening |
    | copied: Redis may yet get a copy | a batch | copied | the generation is left | none | as sent |
    | unconfirmed: it may have been applied | None, or the next opening | | | none | unconfirmed |

    The answer to the next opening shows what became of an unconfirmed batch.

    Attributes:
        batch: the batch to send until it is answered.
        unconfirmed: the number of a batch that may have been applied.
        limit: maximum of items of the next batch; below `BATCH_ITEMS` after one was refused as heavy.
    """

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.unconfirmed: Counter | None = None
        self.limit = BATCH_ITEMS
        self._has_copies = False

    def send(self, batch: Batch) -> None:
        self.batch, self._has_copies = batch, False

    def note_lost_answer(self) -> None:
        """Note that a call failed which Redis may have carried out, or may carry out yet.

        A batch is repeated as it is, so a late copy changes nothing. One that is heavy cannot be: then a new
        generation makes Redis refuse the copies.
        """
        self._has_copies = True

    def cut(self, fitting: int) -> bool:
        """Keep only the first items of a heavy batch, under its number; return whether that is possible."""
        if self.batch is None or self._has_copies:
            return False
        self.batch = replace(self.batch, items=self.batch.items[:fitting], complete=False)
        self.limit = fitting
        return True

    def accept(self, *, has_rest: bool) -> None:
        """Note that Redis has the batch.

        `has_rest`: whether what was put back, such as the rest of a batch that was cut, comes next.
        """
        self.batch = None
        # Perhaps only the first records were large.
        self.limit = min(2 * self.limit, BATCH_ITEMS) if has_rest else BATCH_ITEMS

    def leave(self) -> None:
        """Leave the generation: the answer to the batch can no longer arrive."""
        if self.batch is not None and self.batch.opening is None:
            self.unconfirmed = self.batch.counter
        self.batch = None

    def resolve(self, batch_history: Iterable[CounterSnapshot]) -> CounterSnapshot | None:
        """Return the answer to the unconfirmed batch, by the batch history in an opening's answer.

        Returns:
            None if it was not applied, or if there is none.
        """
        counter, self.unconfirmed = self.unconfirmed, None
        return next((each for each in batch_history if each.counter == counter), None)
