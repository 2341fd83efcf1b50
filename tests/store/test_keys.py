"""Names of keys: the type of each value, the shard of a user, and names of channels."""

import pytest

from presence.rooms.keys import RoomKeys
from presence.store.keys import Keys, value_type

KEYS = Keys("p", shards=4)


@pytest.mark.parametrize(
    ("key", "type"),
    [
        (KEYS.events(1), "stream"),
        (KEYS.online(1), "hash"),
        (KEYS.seen(1), "zset"),
        (KEYS.left(1), "hash"),
        (KEYS.node(1, "n"), "hash"),
        (KEYS.node(1, "seen"), "hash"),
        (KEYS.sessions(1, "n"), "hash"),
        (KEYS.pending_logins(1, "n"), "hash"),
        (KEYS.peer_traces(1), "hash"),
        (KEYS.shard_meta(1), "hash"),
        (KEYS.pending_nodes(1), "set"),
        (KEYS.dead(1), "stream"),
        (KEYS.followups(1), "stream"),
        (f"{KEYS.followup_queue(1)}:dead", "zset"),
        (KEYS.room("lobby"), "hash"),
        (KEYS.room("game:events"), "hash"),
        (KEYS.room_sizes(1), "zset"),
        (KEYS.room_sources(1), "hash"),
        (KEYS.room_events(1), "stream"),
        (KEYS.rooms_state(1), "hash"),
        (RoomKeys("p", 4).dead(1), "stream"),
        (f"{KEYS.timer('t')}:dead", "zset"),
        (f"{KEYS.timer('t')}:slot:7", "zset"),
        (KEYS.nodes, "zset"),
        (KEYS.bans, "hash"),
        (KEYS.meta, "hash"),
        *zip(KEYS.lease_keys, ("zset", "hash", "hash", "zset"), strict=True),
        (KEYS.absent(1), ""),
    ],
)
def test_the_type_of_a_value_follows_from_its_key(key: str, type: str) -> None:
    assert value_type(key) == type


def test_the_shard_of_a_user_is_the_crc_32_of_the_uid_in_utf_8() -> None:
    checksums = {"ann": 0xE7207273, "änn": 0xCAB9613E}
    assert {uid: Keys(shards=1000).shard(uid) for uid in checksums} == {
        uid: checksum % 1000 for uid, checksum in checksums.items()
    }


def test_the_key_of_a_room_is_in_the_shard_of_its_name() -> None:
    keys = Keys("p", shards=1000)
    assert keys.room("änn") == f"p:{{{keys.shard('änn')}}}:room:änn"


def test_channels_of_a_database_other_than_0_include_its_number() -> None:
    assert Keys("p").control_channel("n") == "p:node:n"
    assert Keys("p", database=3).control_channel("n") == "p:@3:node:n"
