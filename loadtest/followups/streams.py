"""What stands in the streams of a run."""

from collections.abc import Iterator
from typing import Any

from loadtest.followups.verdict import Event, Place, Told
from presence.store.keys import Keys

PAGE = 2000


def _entries(client: Any, key: str) -> Iterator[tuple[Place, dict[bytes, bytes]]]:
    begin = "-"
    while True:
        page = client.xrange(key, begin, "+", count=PAGE)
        for entry_id, fields in page:
            yield _place(entry_id), fields
        if len(page) < PAGE:
            return
        begin = f"({page[-1][0].decode()}"


def _place(entry_id: bytes) -> Place:
    ms, _, number = entry_id.partition(b"-")
    return int(ms), int(number)


def read_events(client: Any) -> Iterator[Event]:
    """Return who came and went, in order."""
    for place, fields in _entries(client, Keys().events(0)):
        if fields[b"type"] in {b"online", b"offline"}:
            yield Event(place, fields[b"uid"].decode(), fields[b"type"] == b"online")


def read_told(client: Any) -> Iterator[Told]:
    """Return the follow-ups that were told, in order."""
    for place, fields in _entries(client, Keys().followups(0)):
        yield Told(
            place,
            fields[b"id"].decode(),
            fields[b"uid"].decode(),
            _place(fields[b"offline_id"] or b"0-0"),
            int(fields[b"due_ms"]),
            int(fields[b"at_ms"]),
        )
