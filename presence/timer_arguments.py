"""What may be said after ``presence timers``."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from presence.commands.options import READER_SETTINGS, AddSettings, seconds, some_seconds, whole_number

if TYPE_CHECKING:
    from presence.settings import Settings
    from presence.timers.kinds import Place
    from presence.timers.terms import Job

KINDS: Final = ("ring", "queue", "expiry")
RUNNER_SETTINGS: Final = ("redis", "prefix", "drain_timeout", "log_format", "log_level")
PROCESSES_MAX: Final = 1024
BACKOFF_MAX_S: Final = 300.0  # between two attempts

_RUN = (
    "Each process takes due events, calls the handler with each, and says that it is done. A handler that "
    "raises, or takes longer than --timeout, is called again later; after --attempts its event is a dead "
    "letter. SIGTERM and SIGINT let what runs finish, for --drain-timeout at most; the rest is given back."
)
_NAME = "of the timer; a name is of one kind, and of a ring of one number of slots and one tick"


def add_timers(commands: Any, add_settings: AddSettings) -> None:
    """Add the command.

    Args:
        commands: the subparsers of the command line.
        add_settings: adds flags for settings to a parser.
    """
    timers = commands.add_parser("timers", help="handle events whose time has come")
    actions = timers.add_subparsers(dest="action", required=True, metavar="run|add|cancel|list|dead")

    run = actions.add_parser("run", help="run processes that handle what is due", description=_RUN)
    _add_place(run)
    run.add_argument("--handler", required=True, metavar="MODULE:FUNCTION", help="called with each event")
    numbers = (
        ("processes", 1, PROCESSES_MAX, "how many"),
        ("concurrency", 1, 1000, "handlers that run at once in each process; plain ones in threads"),
        ("batch", 100, 1000, "events that a process takes at once, at most"),
        ("attempts", 5, 1000, "after so many failures an event is a dead letter"),
    )
    for name, default, most, text in numbers:
        run.add_argument(
            f"--{name}",
            type=whole_number(most),
            default=default,
            metavar="N",
            help=f"{text} (default {default})",
        )
    times = (
        ("lease", 30.0, "an event of a process that died is handed out again after so long"),
        ("timeout", 300.0, "a handler that takes longer has failed; a plain one ends with its process"),
        ("backoff", 1.0, "before the second attempt; doubled with each one more"),
    )
    for name, default_s, text in times:
        told = f"{text} (default {default_s:g} s)"
        # Names of their own, for --lease and --tick are settings of the server, too.
        where = f"{name}_s"
        run.add_argument(
            f"--{name}", dest=where, type=some_seconds, default=default_s, metavar="S", help=told
        )
    add_settings(run, RUNNER_SETTINGS)

    add = actions.add_parser("add", help="schedule an event")
    add.add_argument("id", metavar="ID", type=_id, help="names the event in its timer")
    add.add_argument("--delay", type=seconds, required=True, metavar="S", help="due in so many seconds")
    add.add_argument("--payload", default="", metavar="TEXT", help="what the handler gets")
    cancel = actions.add_parser("cancel", help="remove events")
    cancel.add_argument("ids", nargs="+", metavar="ID", type=_id)
    show = actions.add_parser("list", help="print how a timer stands")
    dead = actions.add_parser("dead", help="print what failed for the last time")
    what = dead.add_mutually_exclusive_group()
    what.add_argument("--requeue", action="store_true", help="let all of it be handled again, now")
    what.add_argument("--purge", action="store_true", help="forget all of it")
    for parser in (show, dead):
        parser.add_argument("--json", action="store_true", help="JSON objects")
    for parser in (add, cancel, show, dead):
        _add_place(parser)
        add_settings(parser, READER_SETTINGS)


def run_timers(args: argparse.Namespace, settings: "Settings", redis_url: str) -> int:
    """Run what was said; return the exit status."""
    from presence.commands import timers  # noqa: PLC0415 - help must not wait for redis-py
    from presence.timers.interface import Event, TimerError  # noqa: PLC0415 - as above
    from presence.timers.kinds import Place  # noqa: PLC0415 - as above

    place = Place(redis_url, args.kind, args.name, settings.prefix, args.slots, args.tick_s)
    if args.action == "run":
        try:
            return timers.run(_job(args, settings, place), args.processes)
        except TimerError as error:
            return timers.refuse(error)
    if args.action == "add":
        return timers.add(place, Event(args.id, args.delay, args.payload.encode("utf-8", "surrogateescape")))
    if args.action == "cancel":
        return timers.cancel(place, args.ids)
    if args.action == "list":
        return timers.show(place, as_json=args.json)
    return timers.dead(place, requeue=args.requeue, purge=args.purge, as_json=args.json)


def _job(args: argparse.Namespace, settings: "Settings", place: "Place") -> "Job":
    from presence.timers.handing import Leasing  # noqa: PLC0415 - see `run_timers`
    from presence.timers.terms import Job, Terms  # noqa: PLC0415 - see `run_timers`

    longest_s = max(args.backoff_s, BACKOFF_MAX_S)
    terms = Terms(
        Leasing(args.lease_s, args.attempts, args.backoff_s, longest_s),
        concurrency=args.concurrency,
        batch=max(args.batch, args.concurrency),
        timeout_s=args.timeout_s,
        drain_timeout_s=settings.drain_timeout,
    )
    return Job(place, args.handler, terms, settings.log_format, settings.log_level)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", required=True, choices=KINDS, help="which kind of timer")
    parser.add_argument("--name", required=True, type=_name, help=_NAME)
    parser.add_argument(
        "--slots", type=whole_number(86_400), default=60, metavar="N", help="of a ring (default 60)"
    )
    parser.add_argument(
        "--tick", dest="tick_s", type=some_seconds, default=1.0, metavar="S", help="of a ring (default 1 s)"
    )


def _id(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that are no text
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8") from None
    return text


def _name(text: str) -> str:
    if not text.isprintable() or not text or any(c in "{}" or c.isspace() for c in text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name: no braces, white space or control characters")
    return text
