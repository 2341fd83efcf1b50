"""The part of the relay's task that compares what is in Redis with what is here, a little at a time.

What is compared, and when a difference counts, is in `comparison`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from presence.comparison import Comparison, Memory
from presence.outages import Failures
from presence.outbox import Outbox
from presence.runtime import Caller
from presence.shard_writer import ShardWriter
from presence.store.batches import StoreError, StoreUnavailable
from presence.store.interface import Store
from presence.store.replies import Reply, Status

COMPARE_INTERVAL_S: Final = 10.0  # 100,000 sessions are compared with the records in half an hour

_log = structlog.get_logger(__name__)


class Comparing:
    """Comparisons, one at a time.

    Args:
        outbox: where changes wait that would make a difference.
        store: Redis.
        thread: makes the relay's calls.
        memory: what is compared with the records.
        node: the node's id now.
        clock: monotonic seconds.

    Attributes:
        differences: sessions that were not on record as they were here, or the other way round.
    """

    def __init__(
        self,
        outbox: Outbox,
        store: Store,
        thread: Caller,
        memory: Memory,
        *,
        node: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._outbox = outbox
        self._store = store
        self._thread = thread
        self._node = node
        self._clock = clock
        self._comparison = Comparison(memory, outbox.shard_of)
        self._compared_at = -math.inf
        self.differences = 0

    def hurry(self) -> None:
        """See `Comparison.hurry`."""
        self._comparison.hurry()

    async def compare(self, reachable: Callable[[], Sequence[ShardWriter]], hurried_s: float) -> Failures:
        """Compare a little if it is time to; return what Redis refuses.

        Args:
            reachable: the writers of shards that answer now.
            hurried_s: between two comparisons after news were missed: a probe has to be between two looks at
                a session, since what differs may just not be told yet.
        """
        now = self._clock()
        if not self._is_time(reachable(), now, hurried_s):
            return []
        self._compared_at = now
        try:
            await self._thread.call(self._store.check_meta)  # it may be lost alone
        except StoreUnavailable:
            pass  # it may be on another server than what follows
        except StoreError as error:
            return [error]
        await self._compare_sessions(reachable())
        return []

    def _is_time(self, reachable: Sequence[ShardWriter], now: float, hurried_s: float) -> bool:
        """Whether a comparison is due; after news were missed as soon as it can tell anything."""
        is_hurried = self._comparison.is_hurried and any(writer.is_idle(now) for writer in reachable)
        interval_s = hurried_s if is_hurried else COMPARE_INTERVAL_S
        return bool(reachable) and now - self._compared_at >= interval_s

    async def _compare_sessions(self, reachable: Sequence[ShardWriter]) -> None:
        """Compare a few sessions with the records, where nothing is under way; resync where they differ."""
        now, node, offered = self._clock(), self._node(), self._outbox.offered
        steps = self._comparison.next(writer for writer in reachable if writer.is_idle(now))
        if not steps:
            return
        answers = await self._thread.call(lambda: self._store.apply(steps))
        if node != self._node() or offered != self._outbox.offered:
            self._comparison.unanswered(steps)  # they have changed meanwhile
            return
        writers = {writer.shard: writer for writer in reachable}
        for step, answer in zip(steps, answers, strict=True):
            if not isinstance(answer, Reply) or answer.status is not Status.OK:
                continue  # whatever it is, a batch or a probe meets it too
            if differences := self._comparison.differences(step, answer):
                _log.error("records differ: registering anew", shard=step.shard, sessions=differences)
                self.differences += differences
                writers[step.shard].resync()
