"""A delay queue: an update whose resource another writer has locked is postponed, and not lost.

A writer that finds the lock taken should not wait, because there is other work, and must not drop the update.
At least once is not once, so the ids of applied updates are recorded where they are applied. A lock expires
also while its owner is suspended, so a database should refuse a writer with an older fencing token as well.

Tests: `tests/system/timers/test_examples.py`.
"""

import random
from typing import Final

import trio

from presence.store.embedded import embedded_redis
from presence.store.redis_client import open_client
from presence.timers.handlers import RetryLater, handle_due
from presence.timers.interface import Due, Event
from presence.timers.kinds import TimerLocation
from presence.timers.shared_timer import Leasing

UPDATES: Final = 40
LOCK_S: Final = 2.0  # far longer than an update takes; then the lock of a dead writer is free


async def main() -> None:
    """Apply updates of three accounts with four writers."""
    balances, applied = dict.fromkeys(("ann", "bob", "cy"), 0), set[str]()

    async def apply(due: Due) -> None:
        account, amount = due.payload.decode().split()
        lock = client.lock(f"example:lock:{account}", LOCK_S)
        if not lock.acquire(blocking=False):
            raise RetryLater(random.uniform(0.01, 0.05))  # noqa: S311 - spreads writers
        try:
            balance = balances[account]
            await trio.sleep(0.003)  # without the lock, another writer would read the same balance now
            if due.id not in applied:
                balances[account] = balance + int(amount)
                applied.add(due.id)
        finally:
            lock.release()
        if len(applied) == UPDATES:
            writers.cancel_scope.cancel()

    async def write() -> None:
        with location.open(Leasing(attempts_max=500)) as queue:
            await handle_due(queue, apply)

    with embedded_redis() as redis, open_client(redis.url) as client:
        location = TimerLocation(redis.url, "queue", "updates")
        with location.open() as queue:
            names = list(balances)
            queue.schedule_many(
                Event(f"update-{n}", 0.0, f"{names[n % 3]} {n}".encode()) for n in range(UPDATES)
            )
        async with trio.open_nursery() as writers:
            for _ in range(4):
                writers.start_soon(write)
    print(f"{len(applied)} of {UPDATES} updates applied: {balances}")


if __name__ == "__main__":
    trio.run(main)
