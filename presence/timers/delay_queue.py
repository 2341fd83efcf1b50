"""A delay queue: a sorted set of due times in Redis, with payloads in a hash."""

from presence.store.script_runner import Scripting
from presence.timers.interface import MAX_EVENTS
from presence.timers.shared_timer import Leasing, SharedTimer


class DelayQueue(SharedTimer):
    """Events of any delay, to the millisecond, shared by any number of processes; a `LeasedTimer`.

    Never early by Redis' clock, and late by its workers' poll interval. At least once: events claimed by a
    worker that died are handed out again after their lease. Adding and handing out cost O(log n) per event,
    with n waiting events. Events are identified by id, so equal payloads are separate events. On a Redis
    Cluster one server holds a queue; many queues spread over servers. Arguments: see `SharedTimer`.

    The idea, a sorted set of ids by due time with the payloads elsewhere, is the delay queue of
    http://kaito-kidd.com/2016/12/26/delay-queue-based-on-redis/, which removes events before they are handled
    and so loses them with a worker; the lease is that of Amazon's SQS (visibility time-out).
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
