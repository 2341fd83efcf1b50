"""Which event made a user what he is: found in his shard's stream without reading all of it.

Of a user online the record names the entry. Of one offline the time is known at which he was last seen, and
his offline event is the one that tells this very time: so the stream is read from shortly before it, page by
page, to its end or to a bound, with other callers served in between.
"""

import re
import time
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from presence.store.access import Access
from presence.store.keys import Keys
from presence.subscriber.events import Entry, id_order, read_entry

Missing = Literal["trimmed", "gave_up", "not_found", "never_seen", "redis"]

ENTRIES_A_PAGE: Final = 1000  # some 200 KB, in 1.3 ms of Redis' time
ENTRIES_MAX: Final = 200_000  # of a shard: 30 s of time-out and as long again, at 3000 transitions a second
SEARCH_S: Final = 2.0
# The stream is dated by Redis' clock, and who was seen when by a server's.
CLOCKS_APART_MS: Final = 5_000
_ENTRY_ID: Final = re.compile(r"\d{1,19}-\d{1,19}", re.ASCII)


class Found(NamedTuple):
    """What came of looking for an event.

    Attributes:
        entry: the event.
        missing: why there is none. ``trimmed``: the stream begins after it; ``gave_up``: a bound was reached;
            ``not_found``: it is not where it should be (somebody has deleted it, or Redis lost it).
        begins_ms: of what is missing, Unix milliseconds of the stream's first entry; None: it is empty.
    """

    entry: Entry | None
    missing: Missing | None = None
    begins_ms: int | None = None


def entry_at(access: Access, keys: Keys, shard: int, entry_id: str) -> Found:
    """Return the event of an entry id.

    Raises:
        RedisError: Redis cannot answer.
    """
    key = keys.events(shard)
    if not _ENTRY_ID.fullmatch(entry_id):
        return Found(None, "not_found")
    answer: Any = access.at(key).xrange(key, entry_id, entry_id, count=1)
    if answer:
        return Found(read_entry(shard, answer[0]))
    begins = _first_id(access, key)
    is_trimmed = begins is None or id_order(entry_id) < id_order(begins)
    return Found(None, "trimmed" if is_trimmed else "not_found", _ms(begins))


def last_offline(
    access: Access,
    keys: Keys,
    uid: str,
    last_seen_ms: int,
    *,
    entries_max: int = ENTRIES_MAX,
    search_s: float = SEARCH_S,
) -> Found:
    """Return the event with which a user went offline who was last seen at that time.

    Args:
        access: the way to Redis.
        keys: how keys are called.
        uid: the user.
        last_seen_ms: Unix milliseconds, as Redis keeps them.
        entries_max: how many entries are looked at.
        search_s: for how long.

    Raises:
        RedisError: Redis cannot answer.
    """
    shard = keys.shard(uid)
    key = keys.events(shard)
    begin = f"{max(0, last_seen_ms - CLOCKS_APART_MS)}-0"
    wanted, seen = uid.encode(), b"%d" % last_seen_ms
    looked, deadline = 0, time.monotonic() + search_s
    for page in _pages(access, key, begin):
        for raw in page:
            fields = raw[1]
            if (
                fields.get(b"uid") == wanted
                and fields.get(b"type") == b"offline"
                and fields.get(b"last_seen_ms") == seen
            ):
                return Found(read_entry(shard, raw))
        looked += len(page)
        if len(page) == ENTRIES_A_PAGE and (looked >= entries_max or time.monotonic() >= deadline):
            return Found(None, "gave_up", _ms(_first_id(access, key)))
    begins = _first_id(access, key)
    is_trimmed = begins is None or id_order(begin) < id_order(begins)
    return Found(None, "trimmed" if is_trimmed else "not_found", _ms(begins))


def _pages(access: Access, key: str, begin: str) -> Iterator[list[tuple[bytes, Any]]]:
    while True:
        page: Any = access.at(key).xrange(key, begin, "+", count=ENTRIES_A_PAGE)
        yield page
        if len(page) < ENTRIES_A_PAGE:
            return
        begin = f"({page[-1][0].decode()}"


def _first_id(access: Access, key: str) -> str | None:
    answer: Any = access.at(key).xrange(key, "-", "+", count=1)
    return answer[0][0].decode() if answer else None


def _ms(entry_id: str | None) -> int | None:
    return None if entry_id is None else id_order(entry_id)[0]
