"""Entries of the streams as JSON values, for ``presence tail --json`` and ``/v1/events``."""

import json
from contextlib import suppress

from presence.subscriber.events import ENTRY_NUMBERS, Entry, Gap


def gap_entry(gap: Gap) -> Entry:
    """Return a gap found while reading in the form of a gap entry of the server."""
    fields = {"type": "gap", "reason": gap.reason}
    if gap.dropped is not None:
        fields["dropped"] = str(gap.dropped)
    return Entry(gap.shard, gap.id, fields)


def entry_values(entry: Entry) -> dict[str, object]:
    """Return an entry as JSON values: id and shard first, then its fields, numbers as numbers."""
    values: dict[str, object] = {"id": entry.id, "shard": entry.shard}
    for name, text in entry.fields.items():
        is_number = name in ENTRY_NUMBERS or name.endswith("_ms")
        values[name] = parsed_number(text) if is_number else text
    if said := entry.fields.get("meta"):
        with suppress(ValueError, RecursionError):
            values["meta"] = json.loads(said)
    return values


def parsed_number(text: str) -> int | str:
    """Return a decimal text as a number; any other, or one of over 19 digits, unchanged."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else text
