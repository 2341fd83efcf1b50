"""A judge of the stream of rooms: each room is occupied and vacated in turn, and no entry is doubled."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from presence.store.keys import Keys

PAGE: Final = 10_000
OCCUPIED, VACATED = b"occupied", b"vacated"


@dataclass
class StreamVerdict:
    """What a judge has seen.

    Attributes:
        broken: in words, the first of each kind per room.
    """

    entries: int = 0
    broken: list[str] = field(default_factory=list)


def judge_stream(entries: Iterable[Mapping[bytes, bytes]], occupied: set[bytes]) -> StreamVerdict:
    """Judge the entries of a stream from its beginning on.

    Args:
        occupied: rooms that have members after the last entry.
    """
    verdict, last, seen = StreamVerdict(), dict[bytes, bytes](), set[tuple[bytes, ...]]()
    for fields in entries:
        room, type = fields[b"room"], fields[b"type"]
        verdict.entries += 1
        entry = (room, type, fields[b"uid"], fields[b"event_id"])
        if entry in seen:
            verdict.broken.append(f"{room!r}: {type!r} twice by the event {fields[b'event_id']!r}")
        seen.add(entry)
        if type in (OCCUPIED, VACATED):
            if last.get(room, VACATED) == type:
                verdict.broken.append(f"{room!r}: {type!r} without the other one between")
            last[room] = type
    found = {room for room, type in last.items() if type == OCCUPIED}
    verdict.broken += [f"{room!r}: its last entry is not what it is" for room in found ^ occupied]
    return verdict


def judge_streams(client: Any, keys: Keys) -> StreamVerdict:
    """Judge the streams of all shards as they are in Redis."""
    total = StreamVerdict()
    for shard in range(keys.shards):
        occupied = {room for room, _ in client.zscan_iter(keys.room_sizes(shard), count=1000)}
        verdict = judge_stream(_entries(client, keys.room_events(shard)), occupied)
        total.entries += verdict.entries
        total.broken += verdict.broken
    return total


def _entries(client: Any, key: str) -> Iterable[Mapping[bytes, bytes]]:
    start = b"-"
    while entries := client.xrange(key, start, count=PAGE):
        for _, fields in entries:
            yield fields
        start = b"(" + entries[-1][0]
