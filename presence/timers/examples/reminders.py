"""A ring: a thousand reminders due at the same moment, sent by two workers in batches.

Tests: `tests/system/timers/test_examples.py`.
"""

from collections import Counter
from typing import Final

import trio

from presence.store.embedded import embedded_redis
from presence.timers.handlers import handle_due
from presence.timers.interface import Due, Event
from presence.timers.kinds import TimerLocation

REMINDERS: Final = 1000


async def main() -> None:
    """Schedule the reminders, and send them."""
    sent = Counter[str]()

    async def remind(due: Due) -> None:
        sent[due.id] += 1
        if len(sent) == REMINDERS:
            workers.cancel_scope.cancel()

    async def work() -> None:
        with location.open() as ring:
            await handle_due(ring, remind, batch=100)

    with embedded_redis() as redis:
        location = TimerLocation(redis.url, "ring", "reminders", slots=20, tick_s=0.1)
        with location.open() as ring:
            ring.schedule_many(Event(f"user-{n}", 0.5, b"the match begins") for n in range(REMINDERS))
        async with trio.open_nursery() as workers:
            for _ in range(2):
                workers.start_soon(work)
    print(f"{len(sent)} of {REMINDERS} reminders sent, {sent.total() - len(sent)} of them twice")


if __name__ == "__main__":
    trio.run(main)
