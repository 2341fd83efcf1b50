"""A process of `presence timers run`: a runner, whoever gives it orders, its exit status."""

import os
import socket
from collections.abc import AsyncIterator
from threading import Thread
from typing import Final, NamedTuple

import structlog
import trio

from presence import logs
from presence.orders import Orders
from presence.store.address import redacted
from presence.store.batches import StoreError, StoreUnavailable
from presence.timers import handlers
from presence.timers.interface import TimerError
from presence.timers.kinds import Place
from presence.timers.runner import STUCK, Runner, Terms

OK: Final = 0
FAILED: Final = 1
REFUSED: Final = 2  # what was asked for cannot be had
SAY_LAST_S: Final = 0.5  # with `LAST_WORDS_S` less than a supervisor waits for

log = structlog.get_logger("presence.timers")


class Job(NamedTuple):
    """What a worker does.

    Attributes:
        place: of the timer.
        handler: its name, see `handlers.load`.
        terms: how events are handled.
        log_format, log_level: as `presence.logs.configure` takes them.
    """

    place: Place
    handler: str
    terms: Terms
    log_format: str = "auto"
    log_level: str = "info"


def run(job: Job, number: int, line: socket.socket, is_first: bool) -> int:
    """Be worker `number`; return the exit status.

    Args:
        job: what to do.
        number: from 1, for the log.
        line: the worker's end of the socket pair.
        is_first: end if Redis cannot be reached at first; else wait until it can.
    """
    with logs.configure(job.log_format, job.log_level) as writer:
        structlog.contextvars.bind_contextvars(worker=number)
        try:
            handler = handlers.load(job.handler)
            with job.place.open(job.terms.leasing) as timer:
                runner = Runner(timer, handler, job.terms)
                status = trio.run(_run, runner, Orders(line), is_first, job)
                if runner.goes_on and runner.has_ended:
                    writer.close()
                    with job.place.open(job.terms.leasing) as timer_of_its_own:
                        speaker = Thread(target=runner.say_last, args=[timer_of_its_own], daemon=True)
                        speaker.start()
                        speaker.join(SAY_LAST_S)
                        os._exit(status)
                return status
        except (handlers.HandlerError, TimerError) as error:
            log.error("refusing to start", error=str(error))  # noqa: TRY400 - the message says all
            return REFUSED
        except BaseException:
            log.exception("worker failed")
            return FAILED


async def _run(runner: Runner, line: Orders, is_first: bool, job: Job) -> int:
    async with line.orders() as told, trio.open_nursery() as nursery:
        nursery.start_soon(_obey, told, runner, nursery.cancel_scope)
        await runner.run(line.ready, is_first=is_first)
        nursery.cancel_scope.cancel()
    return _status(runner, job) if runner.has_ended else FAILED


async def _obey(told: AsyncIterator[None], runner: Runner, everything: trio.CancelScope) -> None:
    """Drain at the first order, end at once at the second."""
    await anext(told)
    runner.stop()
    await anext(told)
    log.warning("ended by a second signal")
    everything.cancel()


def _status(runner: Runner, job: Job) -> int:
    error = runner.failure
    if isinstance(error, StoreUnavailable | StoreError):
        log.error("cannot start", redis=redacted(job.place.redis_url), error=str(error))
        return FAILED
    if error is not None:
        log.error("refusing to start", error=str(error))
        return REFUSED
    log.info("stopped", **runner.figures.shown(), pid=os.getpid())
    return STUCK if runner.is_stuck else OK
