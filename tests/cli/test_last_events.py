"""The event that made a user online or offline, found in a real stream, or the reason why it is missing."""

from collections.abc import Iterator
from typing import Any

import pytest

from presence.ops.explain import EventSearch, Missing, entry_at
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import Redis
from presence.store.shard_clients import ShardClients

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


# The entries; the id that is looked for; what is missing, and where the stream begins.
MISSED = [
    ((), "4999-7", "trimmed", None),
    ((5000,), "4999-7", "trimmed", 5000),
    ((5000, 5002), "5001-0", "not_found", 5000),  # erased or lost
    *(
        ((5000,), bad, "not_found", None)
        for bad in ("", "5", "5-1 COUNT 7", "\u0665-\u0661", "9" * 40 + "-1")
    ),
]


@pytest.mark.parametrize(("entries", "wanted", "missing", "begins_ms"), MISSED)
def test_the_reason_of_a_missing_event_is_reported(
    access: ShardClients,
    client: Redis,
    entries: tuple[int, ...],
    wanted: str,
    missing: Missing,
    begins_ms: int | None,
) -> None:
    for entry_ms in entries:
        write(client, entry_ms, 2)
    assert entry_at(access, KEYS, 0, wanted) == EventSearch(None, missing, begins_ms)
