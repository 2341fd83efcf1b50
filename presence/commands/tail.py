"""``presence tail``: every transition as it happens, or as it happened."""

import select
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple, NoReturn

from presence.commands.complaints import subscriber_complains
from presence.commands.outcome import OK, sigterm_interrupts
from presence.commands.reaching import reaching
from presence.event_lines import entry_of, entry_values, number
from presence.rendering import json_line, printable
from presence.subscriber import Entries, entries_sync
from presence.subscriber.events import Entry, Gap


class Selection(NamedTuple):
    """What to print, and how.

    Attributes:
        type: events of this type only; None for all.
        after: entry id to begin after; of a group, where it begins if it is not there.
        as_json: one JSON object a line.
        group: the consumer group to share events with, as `consumer`; None for a reader of its own.
        consumer: this consumer's name in the group.
    """

    type: str | None
    after: str | None
    as_json: bool
    group: str | None = None
    consumer: str | None = None


def run(redis_url: str, prefix: str, selection: Selection) -> int:
    """Print events until a signal comes; return the exit status.

    In a group an event is acknowledged once it was printed.

    Raises:
        BrokenPipeError: nobody reads standard output any more.
    """

    def print_all() -> int:
        with (
            sigterm_interrupts(),
            subscriber_complains(),
            entries_sync(
                redis_url,
                group=selection.group,
                consumer=selection.consumer,
                after=selection.after,
                prefix=prefix,
            ) as entries,
        ):
            _follow(entries, selection)

    try:
        return reaching(redis_url, print_all)
    except KeyboardInterrupt:
        return OK


def _follow(entries: Entries, selection: Selection) -> NoReturn:
    """Print events for ever.

    Raises:
        BrokenPipeError: nobody reads standard output any more.
        RedisError: one that does not pass with time.
    """
    while True:
        item = entries.poll()
        if item is None:
            if _nobody_reads():
                raise BrokenPipeError
            continue
        entry = entry_of(item) if isinstance(item, Gap) else item
        if selection.type in {None, entry.fields.get("type")}:
            print(json_line(entry_values(entry)) if selection.as_json else _human(entry), flush=True)


def _human(event: Entry) -> str:
    fields = {name: printable(value) for name, value in event.fields.items()}
    kind = fields.get("type", "?")
    if kind == "gap":
        subject = f"{fields.get('dropped', 'unknown')} transitions missing"
    else:
        device = fields.get("device")
        subject = fields.get("uid", "?") + (f" ({device})" if device else "")
    columns = (
        _time(event),
        f"{kind:<7}",
        f"{fields.get('reason', ''):<12}",
        f"{subject:<32}",
        event.id,
        fields.get("node", ""),
        fields.get("meta", ""),
    )
    return "  ".join(columns).rstrip()


def _time(event: Entry) -> str:
    at_ms = number(event.fields.get("at_ms") or event.fields.get("to_ms") or event.id.partition("-")[0])
    with suppress(ValueError, OverflowError, OSError, TypeError):
        moment = datetime.fromtimestamp(int(at_ms) / 1000, UTC)
        return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
    return f"{'?':<23}"


def _nobody_reads() -> bool:
    """Whether standard output is a pipe whose reader has gone."""
    with suppress(OSError, ValueError):  # standard output may be no descriptor at all
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(happened & select.POLLERR for _fd, happened in poll.poll(0))
    return False
