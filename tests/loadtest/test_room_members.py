"""Members of rooms as Redis has them, and by the records of users."""

import json

from loadtest.room_members import MemberDifference, differences, recorded_members, stored_members
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import open_client

KEYS = Keys(shards=2)


def test_members_are_read_from_rooms_and_from_records(redis_server: EmbeddedRedis) -> None:
    session = {"session": "s-1", "node": "n-1", "login_ms": 1, "rooms": "lobby"}
    record = {"id": "1-0", "since_ms": 1, "sessions": {"": session}}
    with open_client(redis_server.url) as client:
        client.zadd(KEYS.room_sizes(KEYS.shard("lobby")), {"lobby": 1})
        client.hset(KEYS.room("lobby"), mapping={" o": "5-0", "ann": "5-0 -"})
        client.hset(KEYS.online(KEYS.shard("ann")), "ann", json.dumps(record))
        found = [read(lambda _key: client, KEYS) for read in (stored_members, recorded_members)]
    assert found == [{"lobby": {"ann": "-"}}] * 2


def test_differences_are_members_of_one_side_other_statuses_and_rooms_without_members() -> None:
    stored = {"lobby": {"ann": "-", "bob": "a", "carl": "-"}, "left": {}}
    recorded = {"lobby": {"ann": "-", "bob": "d"}, "new": {"dora": "-"}}
    assert differences(stored, recorded) == {
        MemberDifference("lobby", "bob", "a", "d"),
        MemberDifference("lobby", "carl", "-", None),
        MemberDifference("new", "dora", None, "-"),
        MemberDifference("left", "", None, None),
    }
    assert differences(recorded, recorded) == set()
