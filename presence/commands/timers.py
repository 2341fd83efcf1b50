"""``presence timers``: worker processes with a handler, and what an operator asks of a timer."""

import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import NoReturn

from presence.commands.outcome import FAILED, OK, USAGE, complain, sigterm_interrupts
from presence.commands.reaching import reaching
from presence.logs import configure_directly
from presence.rendering import json_line, printable
from presence.timers.handing import DeadLetter, SharedTimer
from presence.timers.interface import Event, TimerError
from presence.timers.kinds import Place
from presence.timers.packing import ITEMS_A_CALL
from presence.timers.terms import Job

PAYLOAD_CHARS = 60  # shown of a payload; enough to recognise it


def run(job: Job, processes: int) -> int:
    """Run worker processes until a signal comes; return the exit status."""
    with sigterm_interrupts():
        try:
            if complaint := _refusal(job):
                complain(complaint)
                return USAGE
            writer = configure_directly(job.log_format, job.log_level)
            from presence.processes import Processes  # noqa: PLC0415 - what only this command needs
            from presence.timers import worker  # noqa: PLC0415 - trio, once for all that are forked

            return Processes(
                processes,
                lambda number, line, is_first: worker.run(job, number, line, is_first),
                ready_line=f"ready {job.place.kind} {job.place.name}",
                drain_timeout_s=job.terms.drain_timeout_s,
                writer=writer,
            ).run()
        except KeyboardInterrupt:  # before the supervisor took the signals over
            return OK


def refuse(error: TimerError) -> int:
    """Complain about what cannot be had; return the exit status."""
    complain(error)
    return USAGE


def _refusal(job: Job) -> str:
    """Return why the handler, or the timer, cannot be had; "" if they can.

    It is imported in a process of its own: what a module begins when it is imported, threads or connections,
    must not be there when workers are forked from this one.
    """
    with tempfile.TemporaryFile() as said:  # no pipe: whatever the module forks would hold its other end
        pid = os.fork()
        if pid == 0:
            _try(job, said.fileno())
        try:
            _, code = os.waitpid(pid, 0)
        except BaseException:  # a signal: it must not go on alone
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        said.seek(0)
        complaint = said.read().decode("utf-8", "backslashreplace")
    if complaint or not code:
        return complaint
    return f"handler {job.handler}: importing it ended the process ({os.waitstatus_to_exitcode(code)})"


def _try(job: Job, complaints: int) -> NoReturn:
    """The forked process: it must never return into what its parent was doing."""
    status = FAILED
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        from presence.timers import handlers  # noqa: PLC0415 - for this process alone

        try:
            handlers.load(job.handler)
            with job.place.open(job.terms.leasing):
                pass
        except (handlers.HandlerError, TimerError) as error:
            os.write(complaints, str(error).encode("utf-8", "backslashreplace"))
        status = OK
    finally:
        os._exit(status)


def add(place: Place, event: Event) -> int:
    """Schedule an event; return the exit status: 1 if its id is waiting already."""

    def schedule(timer: SharedTimer) -> int:
        if timer.schedule(event):
            return OK
        complain(f"{event.id}: there is an event of this id that is not done yet")
        return FAILED

    return _asking(place, schedule)


def cancel(place: Place, event_ids: list[str]) -> int:
    """Cancel events; return the exit status: 1 if one of them was not there."""

    def remove(timer: SharedTimer) -> int:
        missing = [each for each in event_ids if not timer.cancel(each)]
        for each in missing:
            complain(f"{each}: there is no such event")
        return FAILED if missing else OK

    return _asking(place, remove)


def show(place: Place, *, as_json: bool) -> int:
    """Print how a timer stands; return the exit status."""

    def tell(timer: SharedTimer) -> int:
        state = timer.state()
        facts = {
            "waiting": state.waiting,
            "leased": state.leased,
            "dead": state.dead,
            "next_s": state.next_s,
            "counts": dict(state.counts),
        }
        if as_json:
            print(json_line(facts))
            return OK
        next_s = "-" if state.next_s is None else f"{state.next_s:.1f} s"
        print(f"waiting {state.waiting}  leased {state.leased}  dead {state.dead}  next in {next_s}")
        print("so far  " + "  ".join(f"{name} {n}" for name, n in sorted(state.counts.items())))
        return OK

    return _asking(place, tell)


def dead(place: Place, *, requeue: bool, purge: bool, as_json: bool) -> int:
    """Print the dead letters, let them wait again or forget them; return the exit status."""

    def look(timer: SharedTimer) -> int:
        if not (requeue or purge):
            skip = 0
            while letters := timer.dead(ITEMS_A_CALL, skip):
                for each in letters:
                    print(_json(each) if as_json else _line(each))
                skip += len(letters)
            return OK
        settled, all_now = 0, timer.state().dead
        # No more than there are now: one that dies again meanwhile waits for the next time.
        while settled < all_now and (ids := [each.id for each in timer.dead(all_now - settled)]):
            some = timer.requeue(ids) if requeue else timer.purge(ids)
            if not some:  # others see to them at this moment
                break
            settled += some
        print(json_line({"requeued" if requeue else "purged": settled}) if as_json else settled)
        return OK

    return _asking(place, look)


def _asking(place: Place, ask: Callable[[SharedTimer], int]) -> int:
    def asked() -> int:
        with place.open() as timer:
            return ask(timer)

    try:
        return reaching(place.redis_url, asked)
    except TimerError as error:
        complain(error)
        return USAGE


def _line(letter: DeadLetter) -> str:
    text = letter.payload[:PAYLOAD_CHARS].decode("utf-8", "backslashreplace")
    more = "…" if len(letter.payload) > PAYLOAD_CHARS else ""
    what = f"{printable(letter.id)}  {printable(text)}{more}"
    return f"{_time(letter.died_ms)}  {letter.attempts:>3} attempts  {what}"


def _json(letter: DeadLetter) -> str:
    payload = letter.payload.decode("utf-8", "backslashreplace")
    return json_line({**asdict(letter), "payload": payload})


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
