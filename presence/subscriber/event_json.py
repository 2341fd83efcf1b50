"""Entries of the streams as plain data: a line of ``presence tail --json``, an event of ``/v1/events``."""

import json
from contextlib import suppress

from presence.subscriber.events import ENTRY_NUMBERS, Entry, Gap


def gap_entry(gap: Gap) -> Entry:
    """Return a gap that was found while reading in the form of one that the server wrote."""
    fields = {"type": "gap", "reason": gap.reason}
    if gap.dropped is not None:
        fields["dropped"] = str(gap.dropped)
    return Entry(gap.shard, gap.id, fields)


def entry_values(entry: Entry) -> dict[str, object]:
    """Return an entry as data that JSON can hold: its place first, then its fields, numbers as numbers."""
    values: dict[str, object] = {"id": entry.id, "shard": entry.shard}
    for name, text in entry.fields.items():
        is_number = name in ENTRY_NUMBERS or name.endswith("_ms")
        values[name] = parsed_number(text) if is_number else text
    if said := entry.fields.get("meta"):
        with suppress(ValueError, RecursionError):
            values["meta"] = json.loads(said)
    return values


def parsed_number(text: str) -> int | str:
    """Return the number that a text is; a text that is none, or too long for one, as it is."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else text
