"""``presence followups``: what is to be done for users who stay away, and doing it."""

import argparse
import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

from presence.cli.errors import FAILED, OK, complain, sigterm_interrupts
from presence.cli.options import (
    READER_SETTINGS,
    DataLocation,
    UsageError,
    add_json,
    add_settings,
    plain_text,
    seconds,
    some_seconds,
    whole_number,
)
from presence.cli.redis_errors import asks_redis, subscriber_complains
from presence.common.text import json_line, printable
from presence.followups import FollowUp, FollowUps, PlannedFollowUp, due_sync
from presence.followups.turning import FollowUpScheduler, SchedulerOutage
from presence.ops.explain_text import moment
from presence.timers.handlers import HandlerError
from presence.timers.handlers import load as load_handler
from presence.timers.interface import TimerError

STOP_WAIT_S = 3.0  # for a call that is under way; a closed connection ends it


_RUN: Final = (
    "Plans follow-ups by the rules of the file of --config, the tables [[followups]], and tells those that "
    "are due; without rules there, by those that a server or another run brought last. Any number may run, "
    "beside servers that do the same. With --handler it calls that for each of them, at least once, shared "
    "with all others of the group; what fails is called again after --retry, and is a dead letter after "
    "--attempts."
)

_number = whole_number(10**6)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what may be said after ``presence followups``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="run|list|add|cancel")

    run = actions.add_parser("run", help="plan, tell and handle follow-ups", description=_RUN)
    run.add_argument("--handler", metavar="MODULE:FUNCTION", help="called with each that is due")
    run.add_argument(
        "--group", type=plain_text, default="followups", help="who shares them (default followups)"
    )
    run.add_argument(
        "--attempts", type=_number, default=5, metavar="N", help="until it is a dead letter (default 5)"
    )
    run.add_argument(
        "--retry",
        type=some_seconds,
        default=60.0,
        metavar="S",
        help="until it is handled again (default 60 s)",
    )
    add_settings(run, (*READER_SETTINGS, "stream_maxlen"))

    show = actions.add_parser("list", help="print those that wait")
    show.add_argument("--uid", type=plain_text, help="of this user only")
    show.add_argument("--limit", type=_number, default=1000, metavar="N", help="so many (default 1000)")
    add_json(show, "one JSON object a line")
    add_settings(show, READER_SETTINGS)

    add = actions.add_parser("add", help="let something be done for one user, once")
    add.add_argument("uid", type=plain_text, metavar="UID")
    add.add_argument(
        "--after",
        type=seconds,
        required=True,
        metavar="S",
        help="seconds from now, if he is offline; else from his next offline event",
    )
    add.add_argument("--name", type=plain_text, required=True, help="what is to be done")
    add.add_argument("--payload", default="", metavar="TEXT", help="for whoever does it")
    add_settings(add, READER_SETTINGS)

    cancel = actions.add_parser("cancel", help="take follow-ups out")
    cancel.add_argument("ids", nargs="*", metavar="ID", type=plain_text)
    cancel.add_argument("--uid", action="append", default=[], type=plain_text, help="all of this user")
    add_settings(cancel, READER_SETTINGS)


@asks_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    """Run the action that was named; return the exit status."""
    if args.action == "run":
        return _run(args, place)
    if args.action == "cancel" and not (args.ids or args.uid):
        raise UsageError("followups cancel: name at least one ID, or --uid UID")
    with FollowUps(place.redis_url, prefix=place.prefix) as followups:
        try:
            return {"list": _list, "add": _add, "cancel": _cancel}[args.action](followups, args)
        except TimerError as error:
            raise UsageError(error) from None


def _run(args: argparse.Namespace, place: DataLocation) -> int:
    """Turn, and handle what is due, until a signal comes; return the exit status."""
    handle = _handler(args.handler) if args.handler else None
    rules, kept = place.settings.followups, place.settings.stream_maxlen
    try:
        with (
            sigterm_interrupts(),
            contextlib.closing(FollowUpScheduler(place.redis_url, place.prefix, rules, kept=kept)) as turner,
        ):
            turner.turn()
            if turner.failure is not None:  # at first: the URL or the password is wrong
                raise turner.failure
            complain("followups: turning")
            if handle is None:
                _turn(turner, threading.Event())
            else:
                with _turning(turner):
                    _handle(place, args, handle)
    except KeyboardInterrupt:
        pass
    return OK


def _handler(name: str) -> Callable[[Any], Any]:
    try:
        handler = load_handler(name)
    except HandlerError as error:
        raise UsageError(error) from None
    if handler.is_async:
        raise UsageError(f"handler {name} must be a plain function")
    return handler.function


def _turn(turner: FollowUpScheduler, stop: threading.Event) -> None:
    outage = SchedulerOutage()
    while not stop.wait(turner.turn()):
        failure = turner.failure
        if news := outage.news(failure):
            complain(f"{news}: {failure}" if failure else news)


@contextlib.contextmanager
def _turning(turner: FollowUpScheduler) -> Iterator[None]:
    """Turn in a thread for the length of a ``with`` block."""
    stop = threading.Event()
    thread = threading.Thread(target=_turn, args=(turner, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(STOP_WAIT_S)


def _handle(place: DataLocation, args: argparse.Namespace, handle: Callable[[Any], Any]) -> None:
    """Call the handler with what is due, for ever."""
    with (
        subscriber_complains(),
        due_sync(
            place.redis_url,
            group=args.group,
            consumer=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
            prefix=place.prefix,
            max_deliveries=args.attempts,
            claim_idle_s=args.retry,
            prefetch=1,  # what waits behind a handler that is slow is others' to do
        ) as followups,
    ):
        for followup in followups:
            if not isinstance(followup, FollowUp):
                complain(f"follow-ups are missing in shard {followup.shard}: {followup.reason}")
                continue
            try:
                handle(followup)
            except Exception as error:  # whatever it is, others go on
                complain(f"handler failed with {followup.id}: {type(error).__name__}: {error}")
                followups.fail(error)


def _add(followups: FollowUps, args: argparse.Namespace) -> int:
    added = followups.add(args.uid, after=args.after, name=args.name, payload=args.payload)
    print(f"{printable(added.id)}  {_when(added.due_ms)}")
    return OK


def _cancel(followups: FollowUps, args: argparse.Namespace) -> int:
    """Take out follow-ups by id, and all of users; return 1 if an id is not there."""
    missing = [each for each in args.ids if not followups.cancel(each)]
    cancelled = len(args.ids) - len(missing) + sum(followups.cancel_of(uid) for uid in args.uid)
    print(f"cancelled: {cancelled}")
    for each in missing:
        complain(f"no follow-up {each} waits")
    return FAILED if missing else OK


def _list(followups: FollowUps, args: argparse.Namespace) -> int:
    """Print follow-ups that wait, those due first before others."""
    for pending in followups.earliest(args.limit) if args.uid is None else followups.of(args.uid):
        print(json_line(asdict(pending)) if args.json else _line(pending))
    return OK


def _line(pending: PlannedFollowUp) -> str:
    columns = (_when(pending.due_ms), f"{pending.name:<20}", f"{printable(pending.uid):<32}")
    return "  ".join((*columns, printable(pending.id)))


def _when(due_ms: int | None) -> str:
    if due_ms is None:
        return f"{'when he goes offline':<23}"
    return moment(due_ms).removesuffix(" UTC")
