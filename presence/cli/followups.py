"""``presence followups``: plans, lists and handles actions for users who stay offline."""

import argparse
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

from presence.cli.errors import FAILED, OK, print_error, sigterm_interrupts
from presence.cli.job_loop import run_job
from presence.cli.options import (
    READER_SETTINGS,
    DataLocation,
    UsageError,
    add_json,
    add_number,
    add_seconds,
    add_settings,
    entry_id,
    plain_text,
    seconds,
    uid_argument,
)
from presence.cli.redis_errors import subscriber_errors, with_redis
from presence.common import threads
from presence.common.text import json_line, named, printable
from presence.followups import FollowUp, FollowUps, PlannedFollowUp, due_sync
from presence.followups.handler_loader import HandlerError
from presence.followups.handler_loader import load as load_handler
from presence.followups.run_scheduler import FollowUpScheduler, scheduler_outage
from presence.ops.explain_text import moment
from presence.timers.interface import TimerError

MAX_NUMBER: Final = 10**6  # of attempts, and of follow-ups in a list
STOP_WAIT_S = 3.0  # for a call in progress; closing the connection ends it


_RUN: Final = (
    "Plans follow-ups by the rules of the --config file (the tables [[followups]]) and publishes those that "
    "are due. Without rules there it uses those that a server or another run stored last. Any number may "
    "run, next to servers that do the same. With --handler it calls that function for each follow-up, at "
    "least once, sharing the work with the others of the group. A failed one is retried after --retry and "
    "becomes a dead letter after --attempts."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="run|list|add|cancel")

    run = actions.add_parser("run", help="plan, publish and handle follow-ups", description=_RUN)
    run.add_argument("--handler", metavar="MODULE:FUNCTION", help="function to call with each due follow-up")
    run.add_argument(
        "--group",
        type=plain_text,
        default="followups",
        help="consumer group that shares them (default followups)",
    )
    run.add_argument(
        "--after",
        dest="start",
        metavar="ID",
        type=_start,
        default="0",
        help="where a new group starts: after this entry id; 0 for everything kept (default), new for new "
        "follow-ups only; an existing group continues where it stopped",
    )
    add_number(run, "--attempts", 5, "attempts before it becomes a dead letter", most=MAX_NUMBER)
    add_seconds(run, "--retry", 60.0, "time until a failed one is retried")
    add_settings(run, (*READER_SETTINGS, "stream_maxlen"))

    show = actions.add_parser("list", help="print pending follow-ups")
    show.add_argument("--uid", type=uid_argument, help="only those of this user")
    add_number(show, "--limit", 1000, "at most this many", most=MAX_NUMBER)
    add_json(show, "print one JSON object per line")
    add_settings(show, READER_SETTINGS)

    add = actions.add_parser("add", help="add a follow-up for one user, once")
    add.add_argument("uid", type=uid_argument, metavar="UID")
    add.add_argument(
        "--after",
        type=seconds,
        required=True,
        metavar="S",
        help="seconds from now if the user is offline, else from their next offline event",
    )
    add.add_argument("--name", type=plain_text, required=True, help="name of the action")
    add.add_argument("--payload", default="", metavar="TEXT", help="data for the handler")
    add_settings(add, READER_SETTINGS)

    cancel = actions.add_parser("cancel", help="cancel follow-ups")
    cancel.add_argument("ids", nargs="*", metavar="ID", type=named)
    cancel.add_argument(
        "--uid",
        action="append",
        default=[],
        type=uid_argument,
        help="all follow-ups of this user; may be repeated",
    )
    add_settings(cancel, READER_SETTINGS)


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    if args.action == "run":
        return _run(args, place)
    if args.action == "cancel" and not (args.ids or args.uid):
        raise UsageError("followups cancel: give at least one ID, or --uid UID")
    with FollowUps(place.redis_url, prefix=place.prefix) as followups:
        try:
            return {"list": _list, "add": _add, "cancel": _cancel}[args.action](followups, args)
        except TimerError as error:
            raise UsageError(error) from None


def _run(args: argparse.Namespace, place: DataLocation) -> int:
    """Run the scheduler and the handler until a signal comes; return the exit status."""
    handle = _handler(args.handler) if args.handler else None
    rules, kept = place.settings.followups, place.settings.stream_maxlen
    try:
        with (
            sigterm_interrupts(),
            contextlib.closing(
                FollowUpScheduler(place.redis_url, place.prefix, rules, kept=kept)
            ) as scheduler,
        ):
            scheduler.run_once()
            if scheduler.failure is not None:  # on the first run: a wrong URL or password
                raise scheduler.failure
            print_error("followups: running")
            if handle is None:
                _run_scheduler(scheduler, threading.Event())
            else:
                with _scheduler_thread(scheduler):
                    _handle(place, args, handle)
    except KeyboardInterrupt:
        pass
    return OK


def _start(text: str) -> str | None:
    """Return where a new group starts; None: with new follow-ups."""
    return None if text == "new" else entry_id(text)


def _handler(name: str) -> Callable[[Any], Any]:
    try:
        return load_handler(name)
    except HandlerError as error:
        raise UsageError(error) from None


class _Printed:
    """Prints events; see `presence.common.outage.EventLog`."""

    def warning(self, event: str, *, error: str = "") -> None:
        print_error(f"{event}: {error}" if error else event)

    error = warning


def _run_scheduler(scheduler: FollowUpScheduler, stop: threading.Event) -> None:
    run_job(scheduler, scheduler_outage(_Printed()), stop)


@contextlib.contextmanager
def _scheduler_thread(scheduler: FollowUpScheduler) -> Iterator[None]:
    """Run the scheduler in a thread for the duration of a ``with`` block."""
    stop = threading.Event()
    thread = threading.Thread(target=_run_scheduler, args=(scheduler, stop), daemon=True)
    threads.start(thread)
    try:
        yield
    finally:
        stop.set()
        thread.join(STOP_WAIT_S)


def _handle(place: DataLocation, args: argparse.Namespace, handle: Callable[[Any], Any]) -> None:
    """Call the handler with due follow-ups until interrupted."""
    with (
        subscriber_errors(),
        due_sync(
            place.redis_url,
            group=args.group,
            after=args.start,
            prefix=place.prefix,
            max_deliveries=args.attempts,
            claim_idle=args.retry,
            prefetch=1,  # events behind a slow handler are left to other consumers
        ) as followups,
    ):
        for followup in followups:
            if not isinstance(followup, FollowUp):
                print_error(f"follow-ups are missing in shard {followup.shard}: {followup.reason}")
                continue
            try:
                handle(followup)
            except Exception as error:  # one failure does not stop the others
                print_error(f"handler failed with {followup.id}: {type(error).__name__}: {error}")
                followups.nak(followup, args.retry, error)


def _add(followups: FollowUps, args: argparse.Namespace) -> int:
    added = followups.add(args.uid, after=args.after, name=args.name, payload=args.payload)
    print(f"{printable(added.id)}  {_when(added.due_ms)}")
    return OK


def _cancel(followups: FollowUps, args: argparse.Namespace) -> int:
    """Cancel follow-ups by id and by user; return 1 if an id is unknown."""
    missing = [each for each in args.ids if not followups.cancel(each)]
    cancelled = len(args.ids) - len(missing) + sum(followups.cancel_of(uid) for uid in args.uid)
    print(f"cancelled: {cancelled}")
    for each in missing:
        print_error(f"no pending follow-up {each}")
    return FAILED if missing else OK


def _list(followups: FollowUps, args: argparse.Namespace) -> int:
    """Print pending follow-ups, by due time."""
    for pending in followups.earliest(args.limit) if args.uid is None else followups.of(args.uid):
        print(json_line(asdict(pending)) if args.json else _line(pending))
    return OK


def _line(pending: PlannedFollowUp) -> str:
    columns = (_when(pending.due_ms), f"{printable(pending.name):<20}", f"{printable(pending.uid):<32}")
    return "  ".join((*columns, printable(pending.id)))


def _when(due_ms: int | None) -> str:
    if due_ms is None:
        return f"{'once offline':<23}"
    return moment(due_ms).removesuffix(" UTC")
