"""The event that made a user online or offline, found in a real stream, or the reason why it is missing."""

from collections.abc import Iterator
from typing import Any

import pytest

from presence.ops.explain import (
    ENTRIES_PER_PAGE,
    MAX_CLOCK_SKEW_MS,
    EventSearch,
    Missing,
    entry_at,
    last_offline,
)
from presence.store.client import Redis
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.shard_clients import ShardClients
from tests.store.driving import NOW_MS, Hand, end, login

KEYS = Keys()
STREAM = KEYS.events(0)


@pytest.fixture
def access(redis_server: EmbeddedRedis) -> Iterator[ShardClients]:
    with ShardClients(redis_server.url) as access:
        yield access


def write(client: Redis, entry_ms: int, count: int, **fields: str | int) -> None:
    """Write entries with the same time."""
    with client.pipeline(transaction=False) as pipe:
        for n in range(count):
            values: dict[Any, Any] = {"type": "offline", "uid": "bob", **fields}
            pipe.xadd(STREAM, values, id=f"{entry_ms}-{n + 1}")
        pipe.execute()


def test_of_several_periods_the_last_is_found(access: ShardClients, hand: Hand) -> None:
    for n in range(4):
        hand.apply(login("ann", f"s{n}", at_ms=NOW_MS + 10 * n))
        hand.apply(end("ann", f"s{n}", at_ms=NOW_MS + 10 * n + 5))
    found = last_offline(access, KEYS, "ann", NOW_MS + 35)
    assert found.entry is not None
    assert found.entry.fields["session"] == "s3"


def test_it_is_found_behind_many_others_even_if_clocks_differ(access: ShardClients, client: Redis) -> None:
    write(client, 1_000_000, ENTRIES_PER_PAGE + 10, last_seen_ms=1)
    write(client, 1_000_500, 1, uid="ann", last_seen_ms=1_000_000 + MAX_CLOCK_SKEW_MS)
    write(client, 1_040_000, ENTRIES_PER_PAGE)
    found = last_offline(access, KEYS, "ann", 1_000_000 + MAX_CLOCK_SKEW_MS)
    assert found.entry is not None
    assert found.entry.id == "1000500-1"


def test_the_search_stops_after_a_bounded_number_of_entries(access: ShardClients, client: Redis) -> None:
    write(client, 1_000_000, 3 * ENTRIES_PER_PAGE)
    write(client, 1_000_500, 1, uid="ann", last_seen_ms=999_999)
    given_up = last_offline(access, KEYS, "ann", 999_999, entries_max=2 * ENTRIES_PER_PAGE, search_s=60)
    assert given_up == EventSearch(None, "gave_up", 1_000_000)
    assert last_offline(access, KEYS, "ann", 999_999, entries_max=4 * ENTRIES_PER_PAGE, search_s=60).entry
    assert last_offline(access, KEYS, "ann", 999_999, search_s=0).missing == "gave_up"


# The entries; the id or time last seen that is searched; what is missing, and where the stream begins.
MISSED = [
    ((), "4999-7", "trimmed", None),
    ((), NOW_MS, "trimmed", None),
    ((5000,), "4999-7", "trimmed", 5000),
    ((5000, 5002), "5001-0", "not_found", 5000),  # erased or lost
    *(
        ((5000,), bad, "not_found", None)
        for bad in ("", "5", "5-1 COUNT 7", "\u0665-\u0661", "9" * 40 + "-1")
    ),
    ((1_000_000,), 900_000, "trimmed", 1_000_000),
    ((1_000_000,), 1_010_000, "not_found", 1_000_000),
]


@pytest.mark.parametrize(("entries", "wanted", "missing", "begins_ms"), MISSED)
def test_the_reason_of_a_missing_event_is_reported(
    access: ShardClients,
    client: Redis,
    entries: tuple[int, ...],
    wanted: str | int,
    missing: Missing,
    begins_ms: int | None,
) -> None:
    for entry_ms in entries:
        write(client, entry_ms, 2)
    look = (
        entry_at(access, KEYS, 0, wanted)
        if isinstance(wanted, str)
        else last_offline(access, KEYS, "ann", wanted)
    )
    assert look == EventSearch(None, missing, begins_ms)
