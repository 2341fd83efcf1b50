"""What may be said after ``presence followups``."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from presence.argument_types import READER_SETTINGS, AddSettings, seconds, some_seconds, whole_number

if TYPE_CHECKING:
    from presence.settings import Settings

RUN_SETTINGS: Final = (*READER_SETTINGS, "stream_maxlen")
_RUN: Final = (
    "Plans follow-ups by the rules of the file of --config, the tables [[followups]], and tells those that "
    "are due; without rules there, by those that a server or another run brought last. Any number may run, "
    "beside servers that do the same. With --handler it calls that for each of them, at least once, shared "
    "with all others of the group; what fails is called again after --retry, and is a dead letter after "
    "--attempts."
)

_number = whole_number(10**6)


def add_followups(commands: Any, add_settings: AddSettings) -> None:
    """Add the command.

    Args:
        commands: the subparsers of the command line.
        add_settings: adds flags for settings to a parser.
    """
    followups = commands.add_parser("followups", help="what is to be done for users who stay away")
    actions = followups.add_subparsers(dest="action", required=True, metavar="run|list|add|cancel")

    run = actions.add_parser("run", help="plan, tell and handle follow-ups", description=_RUN)
    run.add_argument("--handler", metavar="MODULE:FUNCTION", help="called with each that is due")
    run.add_argument("--group", type=_text, default="followups", help="who shares them (default followups)")
    run.add_argument(
        "--attempts",
        type=_number,
        default=5,
        metavar="N",
        help="until it is a dead letter (default 5)",
    )
    run.add_argument(
        "--retry",
        type=some_seconds,
        default=60.0,
        metavar="S",
        help="until it is handled again (default 60 s)",
    )
    add_settings(run, RUN_SETTINGS)

    show = actions.add_parser("list", help="print those that wait")
    show.add_argument("--uid", type=_text, help="of this user only")
    show.add_argument("--limit", type=_number, default=1000, metavar="N", help="so many (default 1000)")
    show.add_argument("--json", action="store_true", help="one JSON object a line")
    add_settings(show, READER_SETTINGS)

    add = actions.add_parser("add", help="let something be done for one user, once")
    add.add_argument("uid", type=_text, metavar="UID")
    add.add_argument(
        "--after",
        type=seconds,
        required=True,
        metavar="S",
        help="seconds from now, if he is offline; else from his next offline event",
    )
    add.add_argument("--name", type=_text, required=True, help="what is to be done")
    add.add_argument("--payload", default="", metavar="TEXT", help="for whoever does it")
    add_settings(add, READER_SETTINGS)

    cancel = actions.add_parser("cancel", help="take follow-ups out")
    cancel.add_argument("ids", nargs="*", metavar="ID", type=_text)
    cancel.add_argument("--uid", action="append", default=[], type=_text, help="all of this user")
    add_settings(cancel, READER_SETTINGS)


def run_followups(args: argparse.Namespace, settings: "Settings", redis_url: str) -> int:
    """Run what was said; return the exit status."""
    from presence.commands import followups  # noqa: PLC0415 - help must not wait for redis-py

    if args.action == "run":
        running = followups.Running(
            settings.followups,
            settings.stream_maxlen,
            args.handler,
            args.group,
            args.attempts,
            args.retry,
        )
        return followups.run(redis_url, settings.prefix, running)
    if args.action == "list":
        return followups.show(redis_url, settings.prefix, args.uid, limit=args.limit, as_json=args.json)
    if args.action == "add":
        what = {"after": args.after, "name": args.name, "payload": args.payload}
        return followups.add(redis_url, settings.prefix, args.uid, **what)
    if not (args.ids or args.uid):
        return followups.nothing_named()
    return followups.cancel(redis_url, settings.prefix, args.ids, args.uid)


def _text(text: str) -> str:
    if not (text and text.isprintable()):
        raise argparse.ArgumentTypeError(f"{text!r}: must be text without control characters")
    return text
