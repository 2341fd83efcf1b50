"""Expiry: an order that is not paid in time lapses.

Payment and lapse can race, because the event may already be with the handler when the payment comes. So the
winner is decided where the order is stored, by a change that only one of the two can make.

Tests: `tests/system/timers/test_examples.py`.
"""

from typing import Final

import trio

from presence.store.embedded import embedded_redis
from presence.timers.handlers import handle_due
from presence.timers.interface import Due, Event
from presence.timers.kinds import TimerLocation

ORDERS: Final = 40
TO_PAY_S: Final = 0.5


async def main() -> None:
    """Place the orders, pay every other one, and let the rest lapse."""
    unpaid = {f"order-{n}" for n in range(ORDERS)}
    paid, lapsed = set[str](), set[str]()

    def settle(order: str, outcome: set[str]) -> None:
        if order in unpaid:
            unpaid.remove(order)
            outcome.add(order)

    async def lapse(due: Due) -> None:
        settle(due.id, lapsed)
        if not unpaid:
            worker.cancel()

    with embedded_redis() as redis, TimerLocation(redis.url, "expiry", "orders").open() as timer:
        timer.schedule_many(Event(order, TO_PAY_S) for order in unpaid)
        for order in sorted(unpaid)[::2]:
            settle(order, paid)
            timer.cancel(order)
        with trio.CancelScope() as worker:
            await handle_due(timer, lapse)
    print(f"{ORDERS} orders: {len(paid)} paid, {len(lapsed)} lapsed, {len(unpaid)} open")


if __name__ == "__main__":
    trio.run(main)
