"""Expiry: an order that is not paid in time lapses, and its goods are for sale again.

    presence timers run --kind expiry --name orders --handler presence.timers.examples.unpaid_orders:lapse

Each order is an event beside a key with a time to live; a payment cancels it. Payment and lapse can meet: the
event may be with a handler already when the money comes. So who was first is decided where the order is
stored, by a change that only one of the two can make, and never by the timer.
"""

from typing import Final

from presence.store.client import Redis
from presence.timers.examples import stage
from presence.timers.interface import Due, Event
from presence.timers.kinds import TimerLocation
from presence.timers.shared_timer import SharedTimer

ORDERS: Final = "example:{orders}"  # with a suffix, a set each: open, paid, lapsed
NUMBER: Final = 40
TO_PAY_S: Final = 1.0


def lapse(due: Due) -> None:
    """Let an order lapse that is open still."""
    stage.redis().smove(f"{ORDERS}:open", f"{ORDERS}:lapsed", due.id)


def place_order(redis: Redis, timer: SharedTimer, order: str) -> None:
    """Take an order, which is to be paid within `TO_PAY_S`."""
    redis.sadd(f"{ORDERS}:open", order)
    timer.schedule(Event(order, TO_PAY_S))


def pay(redis: Redis, timer: SharedTimer, order: str) -> bool:
    """Take a payment; return whether it came in time."""
    is_in_time = bool(redis.smove(f"{ORDERS}:open", f"{ORDERS}:paid", order))
    timer.cancel(order)
    return is_in_time


def main() -> None:
    """Show it: every other order is paid, the rest lapse."""
    with stage.stage() as url:
        place, redis = TimerLocation(url, "expiry", stage.NAME), stage.redis()
        with place.open() as timer:
            for n in range(NUMBER):
                place_order(redis, timer, f"order-{n}")
            paid = sum(pay(redis, timer, f"order-{n}") for n in range(0, NUMBER, 2))
            handler = f"{__spec__.name}:lapse"
            stage.work(place, handler, lambda: redis.scard(f"{ORDERS}:lapsed") == NUMBER - paid)
        left, lapsed = redis.scard(f"{ORDERS}:open"), redis.scard(f"{ORDERS}:lapsed")
    print(f"{NUMBER} orders: {paid} paid, {lapsed} lapsed, {left} open")
    if (paid, lapsed, left) != (NUMBER // 2, NUMBER // 2, 0):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
