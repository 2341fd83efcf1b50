"""The number of shards is read again after a loss of data: the servers may have been started with another."""

from collections.abc import Callable
from typing import Any

import pytest

from presence.store.redis_client import Redis
from presence.subscriber import (
    BlockingSubscription,
    Gap,
    Online,
    Snapshot,
    follow_sync,
    subscribe_sync,
)
from tests.subscriber.streams import Streams
from tests.support.waiting import wait_for

NAMES = [f"u{n}" for n in range(20)]
KINDS: dict[str, Callable[[str], BlockingSubscription[Any]]] = {
    "alone": subscribe_sync,
    "in a group": lambda url: subscribe_sync(url, group="g", consumer="c"),
    "follow": follow_sync,
}


def online(events: BlockingSubscription[Any], count: int) -> set[str]:
    """Take items until that many users came online."""
    found: set[str] = set()

    def is_there() -> bool:
        match events.poll():
            case Online(uid=uid):
                found.add(uid)
            case Snapshot(online=users):
                found.update(users)
            case _:
                pass
        return len(found) >= count

    wait_for(is_there)
    return found


@pytest.mark.parametrize("before", [1, 4])
@pytest.mark.parametrize("after", [1, 2, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_redis_that_comes_back_with_other_shards_is_read_completely(
    url: str, client: Redis, kind: str, before: int, after: int
) -> None:
    Streams(client, before)
    with KINDS[kind](url) as events:
        events.poll()
        Streams(client, before).write("first")
        assert online(events, 1) == {"first"}
        client.flushall()
        streams = Streams(client, after)
        loss = Snapshot if kind == "follow" else Gap
        wait_for(lambda: isinstance(events.poll(), loss))
        streams.write(*NAMES)
        assert online(events, len(NAMES)) >= set(NAMES)
