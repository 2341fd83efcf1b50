"""``presence timers``: inspects and changes a shared timer."""

import argparse
from dataclasses import asdict
from typing import Any, Final

from presence.cli.errors import FAILED, OK, print_error
from presence.cli.options import (
    READER_SETTINGS,
    DataLocation,
    UsageError,
    add_json,
    add_number,
    add_seconds,
    add_settings,
    seconds,
)
from presence.cli.redis_errors import with_redis
from presence.common.text import json_line, printable, utc_time
from presence.timers.interface import Event, TimerError
from presence.timers.kinds import KINDS, MAX_SLOTS, TimerLocation
from presence.timers.shared_timer import MAX_ITEMS_PER_CALL, DeadLetter, SharedTimer

PAYLOAD_CHARS: Final = 60  # shown of a payload; enough to recognise it
_NAME: Final = "name of the timer; it keeps its kind, and a ring its slots and tick"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="add|cancel|list|dead")
    add = actions.add_parser("add", help="schedule an event")
    add.add_argument("id", metavar="ID", help="id of the event, unique in its timer")
    add.add_argument(
        "--delay", type=seconds, required=True, metavar="S", help="seconds until the event is due"
    )
    add.add_argument("--payload", default="", metavar="TEXT", help="data for the handler")
    cancel = actions.add_parser("cancel", help="remove events")
    cancel.add_argument("ids", nargs="+", metavar="ID")
    show = actions.add_parser("list", help="print the state of a timer")
    dead = actions.add_parser("dead", help="print dead letters")
    what = dead.add_mutually_exclusive_group()
    what.add_argument("--requeue", action="store_true", help="schedule all dead letters again, due now")
    what.add_argument("--purge", action="store_true", help="delete all dead letters")
    for action in (show, dead):
        add_json(action, "JSON objects")
    for action in (add, cancel, show, dead):
        _add_place(action)
        add_settings(action, READER_SETTINGS)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", required=True, choices=KINDS, help="kind of timer")
    parser.add_argument("--name", required=True, type=_name, help=_NAME)
    add_number(parser, "--slots", 60, "slots of a ring", most=MAX_SLOTS)
    add_seconds(parser, "--tick", 1.0, "tick of a ring", dest="tick_s")


def _name(text: str) -> str:
    if not text.isprintable() or not text or any(c in "{}" or c.isspace() for c in text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid name: it must have no braces, white space or control characters"
        )
    return text


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    location = TimerLocation(place.redis_url, args.kind, args.name, place.prefix, args.slots, args.tick_s)
    action = {"add": _add, "cancel": _cancel, "list": _show, "dead": _dead}[args.action]
    try:
        with location.open() as timer:
            return action(args, timer)
    except TimerError as error:
        raise UsageError(error) from None


def _add(args: argparse.Namespace, timer: SharedTimer) -> int:
    """Schedule an event; return the exit status: 1 if its id is already pending."""
    if timer.schedule(Event(args.id, args.delay, args.payload.encode("utf-8", "surrogateescape"))):
        return OK
    print_error(f"{args.id}: an event with this id is still pending")
    return FAILED


def _cancel(args: argparse.Namespace, timer: SharedTimer) -> int:
    """Cancel events; return the exit status: 1 if one is unknown."""
    missing = [each for each in args.ids if not timer.cancel(each)]
    for each in missing:
        print_error(f"{each}: no such event")
    return FAILED if missing else OK


def _show(args: argparse.Namespace, timer: SharedTimer) -> int:
    """Print the state of a timer."""
    facts: dict[str, Any] = asdict(timer.state())
    if args.json:
        print(json_line(facts))
        return OK
    next_s = "-" if facts["next_s"] is None else f"{facts['next_s']:.1f} s"
    print("pending {waiting}  leased {leased}  dead {dead}  ".format_map(facts) + f"next in {next_s}")
    print("totals  " + "  ".join(f"{name} {n}" for name, n in sorted(facts["counts"].items())))
    return OK


def _dead(args: argparse.Namespace, timer: SharedTimer) -> int:
    """Print, requeue or purge dead letters."""
    if not (args.requeue or args.purge):
        skip = 0
        while letters := timer.dead(MAX_ITEMS_PER_CALL, skip):
            for each in letters:
                print(_json(each) if args.json else _line(each))
            skip += len(letters)
        return OK
    settled, all_now = 0, timer.state().dead
    # At most as many as there are now: events that fail again meanwhile are left for the next call.
    while settled < all_now and (ids := [each.id for each in timer.dead(all_now - settled)]):
        some = timer.requeue(ids) if args.requeue else timer.purge(ids)
        if not some:  # another call handles them now
            break
        settled += some
    print(json_line({"requeued" if args.requeue else "purged": settled}) if args.json else settled)
    return OK


def _line(letter: DeadLetter) -> str:
    text = letter.payload[:PAYLOAD_CHARS].decode("utf-8", "backslashreplace")
    more = "…" if len(letter.payload) > PAYLOAD_CHARS else ""
    died_at = utc_time(letter.died_ms).removesuffix(" UTC")
    return f"{died_at}  {letter.attempts:>3} attempts  {printable(letter.id)}  {printable(text)}{more}"


def _json(letter: DeadLetter) -> str:
    return json_line({**asdict(letter), "payload": letter.payload.decode("utf-8", "backslashreplace")})
