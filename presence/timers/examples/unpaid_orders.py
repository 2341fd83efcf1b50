"""Expiry: an order that is not paid in time lapses.

    presence timers run --kind expiry --name orders --handler presence.timers.examples.unpaid_orders:lapse

Each order is an event with a key with a time to live; a payment cancels it. Payment and lapse can race: the
event may already be with a handler when the payment comes. So the winner is decided where the order is
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
    """Let an order lapse if it is still open."""
    stage.redis().smove(f"{ORDERS}:open", f"{ORDERS}:lapsed", due.id)


def place_order(redis: Redis, timer: SharedTimer, order: str) -> None:
    """Accept an order, to be paid within `TO_PAY_S`."""
    redis.sadd(f"{ORDERS}:open", order)
    timer.schedule(Event(order, TO_PAY_S))


def pay(redis: Redis, timer: SharedTimer, order: str) -> bool:
    """Accept a payment; return whether it was in time."""
    is_in_time = bool(redis.smove(f"{ORDERS}:open", f"{ORDERS}:paid", order))
    timer.cancel(order)
    return is_in_time


def main() -> None:
    """Run it: every other order is paid, the rest lapse."""
    with stage.stage() as url:
        location, redis = TimerLocation(url, "expiry", stage.NAME), stage.redis()
        with location.open() as timer:
            for n in range(NUMBER):
                place_order(redis, timer, f"order-{n}")
            paid = sum(pay(redis, timer, f"order-{n}") for n in range(0, NUMBER, 2))
            handler = f"{__spec__.name}:lapse"
            stage.work(location, handler, lambda: redis.scard(f"{ORDERS}:lapsed") == NUMBER - paid)
        left, lapsed = redis.scard(f"{ORDERS}:open"), redis.scard(f"{ORDERS}:lapsed")
    print(f"{NUMBER} orders: {paid} paid, {lapsed} lapsed, {left} open")
    if (paid, lapsed, left) != (NUMBER // 2, NUMBER // 2, 0):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
