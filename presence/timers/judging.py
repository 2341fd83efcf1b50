"""What a handler's exception means for its event."""

import structlog
import trio

from presence.timers.figures import Figures
from presence.timers.handing import Leasing
from presence.timers.handlers import PutOff
from presence.timers.interface import Due

log = structlog.get_logger("presence.timers")


def is_cancelled(error: BaseException) -> bool:
    """Whether trio, or a signal, has ended a handler, and nothing else happened."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_cancelled(each) for each in error.exceptions)
    return isinstance(error, trio.Cancelled | KeyboardInterrupt)


def judge(due: Due, error: BaseException, handler: str, leasing: Leasing, figures: Figures) -> float:
    """Count and log that an event was not handled; return after how many seconds it is to come again."""
    facts = {"id": due.id, "attempt": due.attempt, "handler": handler}
    delay_s = leasing.pause_s(due.attempt)
    if isinstance(error, PutOff):
        figures.put_off += 1
        delay_s = delay_s if error.delay_s is None else error.delay_s
    else:
        figures.failed += 1
    # An attempt that was given back does not count, of which only Redis knows: then there is one more.
    if due.attempt >= leasing.attempts_max:
        figures.dead += 1
        log.error("no attempt is left: a dead letter", **facts, exc_info=error)
    elif not isinstance(error, PutOff):
        log.warning("a handler failed", **facts, again_s=round(delay_s, 3), exc_info=error)
    return delay_s
