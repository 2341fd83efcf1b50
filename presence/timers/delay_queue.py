"""A delay queue: a sorted set of due times in Redis, and payloads beside it."""

from presence.store.script_runner import Scripting
from presence.timers.interface import MAX_EVENTS
from presence.timers.shared_timer import Leasing, SharedTimer


class DelayQueue(SharedTimer):
    """Events of any delay, to the millisecond, shared by any number of processes; a `LeasedTimer`.

    Never early by Redis' clock, and as late as its workers look. At least once: what a worker that died had
    claimed is handed out again after its lease. Adding and handing out cost O(log n) an event, whatever n
    others wait. Events are told apart by id, so equal payloads are events of their own. On a Redis Cluster
    one server has a queue; many queues spread.

    The idea, a sorted set of ids by due time with the payloads elsewhere, is the delay queue of
    http://kaito-kidd.com/2016/12/26/delay-queue-based-on-redis/, which removes what it hands out before it
    was handled, and so loses it with a worker; the lease is that of Amazon's SQS (visibility time-out).

    Args:
        scripting: the connections.
        base: what the keys begin with, see `Keys.timer`.
        leasing: how events are handed out.
        events_max: how many it may hold, dead letters among them.
    """

    def __init__(
        self,
        scripting: Scripting,
        base: str,
        leasing: Leasing | None = None,
        *,
        events_max: int = MAX_EVENTS,
    ) -> None:
        super().__init__(scripting, base, leasing or Leasing(), events_max, index=(b"", "due"))
