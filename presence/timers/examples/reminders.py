"""A ring: many reminders due at one moment, and others around it.

    presence timers run --kind ring --name reminders --slots 60 --tick 1
        --handler presence.timers.examples.reminders:remind --concurrency 4

All events due at one moment are in one slot, and are handed out in slices: no call takes long, and several
processes share them. At least once: to send each reminder only once, record the event's id, as here.
"""

from typing import Final

from presence.timers.examples import stage
from presence.timers.interface import Due, Event
from presence.timers.kinds import TimerLocation

SENT: Final = "example:{reminders}:sent"  # hash: reminder to how often it was sent
EARLY: Final = "example:{reminders}:early"
MOMENT: Final = 1000  # reminders due at one moment
AROUND: Final = 100  # and others, each at its own time
DELAY_S: Final = 1.0
TICK_S: Final = 0.1


def remind(due: Due) -> None:
    """Send a reminder; here: count it."""
    redis = stage.redis()
    seconds, micros = redis.time()
    if int(seconds) * 1000 + int(micros) // 1000 < due.due_ms:
        redis.incr(EARLY)
    redis.hincrby(SENT, due.id, 1)


def main() -> None:
    """Run it: two processes, a thousand reminders at one moment and a hundred at others."""
    with stage.stage() as url:
        location = TimerLocation(url, "ring", stage.NAME, slots=20, tick_s=TICK_S)
        with location.open() as ring:
            ring.schedule_many(Event(f"all-{n}", DELAY_S, b"the match begins") for n in range(MOMENT))
            ring.schedule_many(Event(f"one-{n}", n * 0.03, b"your turn") for n in range(AROUND))
            stage.work(
                location,
                f"{__spec__.name}:remind",
                lambda: ring.state().counts.get("done") == MOMENT + AROUND,
                *("--concurrency", "4"),
            )
        sent = [int(times) for times in stage.redis().hgetall(SENT).values()]
        early = int(stage.redis().get(EARLY) or 0)
    twice = sum(times > 1 for times in sent)
    print(f"{len(sent)} of {MOMENT + AROUND} reminders sent, {twice} of them twice, {early} early")
    if (len(sent), twice, early) != (MOMENT + AROUND, 0, 0):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
