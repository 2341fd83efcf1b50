"""``presence tail``: prints events as they happen, and past ones.

Tests: `tests/system/cli/test_tail.py`.
"""

import argparse
import select
import sys
from contextlib import suppress
from typing import NoReturn

from presence.cli.errors import FAILED, OK, print_error, sigterm_interrupts
from presence.cli.options import DataLocation, UsageError, add_reader, entry_id, plain_text
from presence.cli.redis_errors import subscriber_errors, with_redis
from presence.common.text import json_line, printable
from presence.ops.explain_text import moment
from presence.subscriber import BlockingSubscription, ConsumerInUse, entries_sync
from presence.subscriber.events import Entry, Gap, Item, entry_values, gap_entry, parsed_number

_TYPES = ("online", "offline", "away", "update", "device", "rooms")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--type", choices=_TYPES, help="print only events of this type")
    parser.add_argument(
        "--after",
        dest="after",
        metavar="ID",
        type=entry_id,
        help="start after this entry id; 0 for everything kept (default: new events only); an existing group "
        "continues where it stopped",
    )
    parser.add_argument(
        "--group", type=plain_text, help="share the events with the other consumers of this group"
    )
    parser.add_argument(
        "--consumer",
        type=plain_text,
        help="name of this consumer, unique within the group; by default a new one",
    )
    add_reader(parser, "print one JSON object per line")


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    """Print events until a signal comes; in a group each is acknowledged after it is printed."""
    if args.consumer is not None and args.group is None:
        raise UsageError("tail: --consumer needs --group")
    where = {"group": args.group, "consumer": args.consumer, "after": args.after}
    try:
        with (
            sigterm_interrupts(),
            subscriber_errors(),
            entries_sync(place.redis_url, **where, prefix=place.prefix) as entries,
        ):
            _follow(entries, args.type, as_json=args.json)
    except ConsumerInUse as error:
        print_error(str(error))
        return FAILED
    except KeyboardInterrupt:
        return OK


def _follow(entries: BlockingSubscription[Item], kind: str | None, *, as_json: bool) -> NoReturn:
    """Print events until interrupted."""
    while True:
        item = entries.poll()
        if item is None:
            if _is_unread():
                raise BrokenPipeError
            continue
        entry = gap_entry(item) if isinstance(item, Gap) else item
        if kind in {None, entry.fields.get("type")}:
            print(json_line(entry_values(entry)) if as_json else _human(entry), flush=True)


def _human(event: Entry) -> str:
    fields = {name: printable(value) for name, value in event.fields.items()}
    kind = fields.get("type", "?")
    if kind == "gap":
        subject = f"{fields.get('dropped', 'unknown')} transitions missing"
    else:
        device = fields.get("device")
        subject = fields.get("uid", "?") + (f" ({device})" if device else "")
    said = fields.get("meta", "")
    if kind == "rooms":
        left = f", left {fields['rooms_left']}" if "rooms_left" in fields else ""
        said = f"in {fields.get('rooms', 'none')}{left}"
    columns = (
        _time(event),
        f"{kind:<7}",
        f"{fields.get('reason', ''):<12}",
        f"{subject:<32}",
        event.id,
        fields.get("node", ""),
        said,
    )
    return "  ".join(columns).rstrip()


def _time(event: Entry) -> str:
    at_ms = parsed_number(
        event.fields.get("at_ms") or event.fields.get("to_ms") or event.id.partition("-")[0]
    )
    return moment(at_ms).removesuffix(" UTC") if isinstance(at_ms, int) else f"{'?':<23}"


def _is_unread() -> bool:
    """Whether standard output is a pipe whose reader has gone."""
    with suppress(OSError, ValueError):  # standard output may be no descriptor at all
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(happened & select.POLLERR for _fd, happened in poll.poll(0))
    return False
