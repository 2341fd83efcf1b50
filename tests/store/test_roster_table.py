"""Rosters in Redis: changes, their bounds, what nodes are told, and damaged entries."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from presence.common.errors import StoreUnavailable
from presence.protocol import UIDS_MAX
from presence.store.keys import Keys
from presence.store.redis_client import Redis, open_client
from presence.store.roster_table import (
    MAX_CHANGES_PER_CALL,
    RosterChange,
    RosterFull,
    RosterTable,
    StoredRosters,
    erase_call,
    read_changed,
)
from tests.store.servers import Server

KEYS = Keys(shards=3)
ROSTERS = [KEYS.rosters(shard) for shard in range(KEYS.shards)]
FRIENDS = ["bob", "carl", "dora"]
ENTRY_BYTES = 100  # beside the texts


@pytest.fixture
def rosters(server: Server) -> Iterator[RosterTable]:
    with closing(RosterTable(server.url, KEYS, 10**6)) as rosters:
        yield rosters


@pytest.fixture
def stored(server: Server) -> Iterator[StoredRosters]:
    with closing(StoredRosters(server.url, KEYS)) as stored:
        yield stored


def put(*uids: str, of: str = "ann") -> RosterChange:
    return RosterChange(of, (), uids, is_new=True)


def add(*uids: str) -> RosterChange:
    return RosterChange("ann", (), uids)


def remove(*uids: str) -> RosterChange:
    return RosterChange("ann", uids, ())


def counted(client: Redis) -> int:
    """Return the memory that the rosters are said to take, after comparing it with what is there."""
    total = 0
    for key in ROSTERS:
        fields = client.hgetall(key)
        said = int(fields.pop(b" bytes", b"0"))
        assert said == sum(ENTRY_BYTES + len(uid) + len(text) for uid, text in fields.items())
        assert fields or not client.exists(key), "nothing is left of the last roster"
        total += said
    return total


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([put("dora", "bob", "carl", "bob")], ("bob", "carl", "dora")),
        ([put("bob"), put("carl")], ("carl",)),
        ([put("bob"), put()], ()),
        ([add("bob")], ("bob",)),
        ([put("bob"), add("carl", "bob", "abe")], ("abe", "bob", "carl")),
        ([put(*FRIENDS), remove("carl", "nobody")], ("bob", "dora")),
        ([put(*FRIENDS), RosterChange("ann", ["bob"], ["eve"])], ("carl", "dora", "eve")),
        ([remove("bob")], ()),
        ([put("é", "z", "🙂", "Z")], ("Z", "z", "é", "🙂")),
        ([], None),
    ],
    ids=repr,
)
def test_a_roster_is_what_its_changes_have_made_of_it(
    rosters: RosterTable, stored: StoredRosters, server: Server, changes: list[RosterChange], expected: object
) -> None:
    counts = rosters.change(changes)
    assert stored.read(["ann"]) == {"ann": expected}
    assert counts[-1:] == ([] if expected is None else [len(expected)])  # type: ignore[arg-type]
    counted(server.client)


def test_many_are_changed_and_read_together(rosters: RosterTable, stored: StoredRosters) -> None:
    users = [f"u{n}" for n in range(3 * MAX_CHANGES_PER_CALL + 5)]
    changes = [put(*(f"f{each}" for each in range(n)), of=user) for n, user in enumerate(users)]
    assert rosters.change(changes) == [*range(len(users))]
    found = stored.read([*users, "nobody"])
    assert [len(found[user] or ()) for user in users] == [*range(len(users))]
    assert found["nobody"] is None


def test_a_roster_has_500_users_at_most_and_a_larger_one_changes_nothing(
    rosters: RosterTable, stored: StoredRosters
) -> None:
    most = [f"u{n:03}" for n in range(UIDS_MAX)]
    full, count = rosters.change([put(*most), RosterChange("ann", [most[0]], ["new"])])
    assert (full, count) == (UIDS_MAX, UIDS_MAX)
    (refused,) = rosters.change([add("one-more")])
    assert isinstance(refused, RosterFull)
    assert stored.read(["ann"])["ann"] == tuple(sorted([*most[1:], "new"]))


def test_rosters_take_so_much_memory_and_what_makes_them_smaller_is_never_refused(server: Server) -> None:
    room = ENTRY_BYTES + len("ann") + len("bob carl")
    with closing(RosterTable(server.url, Keys(shards=1), room)) as rosters:
        assert rosters.change([put("bob", "carl")]) == [2]
        larger, other, smaller, other_again = rosters.change(
            [add("dora"), put(of="eve"), remove("carl"), add("x")]
        )
        assert isinstance(larger, RosterFull)
        assert isinstance(other, RosterFull)
        assert (smaller, other_again) == (1, 2)
    with closing(RosterTable(server.url, Keys(shards=1), 10)) as rosters:
        assert rosters.change([remove("x"), put()]) == [1, 0], "the bound was lowered"


def test_the_memory_of_rosters_is_counted_exactly(rosters: RosterTable, server: Server) -> None:
    rosters.change([put(*FRIENDS), put("eve", of="bob"), add("eve"), remove("carl"), put("bob")])
    assert counted(server.client) == 2 * ENTRY_BYTES + len("annbob") + len("bobeve")
    rosters.one(erase_call(KEYS, KEYS.shard("ann"), ["ann", "nobody"]))
    rosters.one(erase_call(KEYS, KEYS.shard("bob"), ["bob"]))
    assert counted(server.client) == 0


def test_a_full_redis_still_makes_rosters_smaller(
    rosters: RosterTable, stored: StoredRosters, server: Server
) -> None:
    rosters.change([put(*FRIENDS)])
    server.client.config_set("maxmemory", 1)
    assert rosters.change([remove("carl")]) == [2]
    with pytest.raises(StoreUnavailable):
        rosters.change([add("x" * 120)])
    assert stored.read(["ann"]) == {"ann": ("bob", "dora")}
    rosters.one(erase_call(KEYS, KEYS.shard("ann"), ["ann"]))
    assert stored.read(["ann"]) == {"ann": None}


def test_nodes_are_told_of_each_changed_roster_and_of_no_other(rosters: RosterTable, server: Server) -> None:
    with open_client(server.url) as client, client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(KEYS.roster_channel)
        pubsub.get_message(timeout=1)
        rosters.change([put("bob", of="é"), put("bob"), add("bob"), put("bob"), remove("carl")])
        rosters.one(erase_call(KEYS, KEYS.shard("nobody"), ["nobody"]))
        rosters.change([put(of="last")])
        told: list[str] = []
        while "last" not in told:
            message = pubsub.get_message(timeout=2)
            assert message is not None
            told += read_changed(message["data"])
    assert sorted(told) == ["ann", "last", "é"]


@pytest.mark.parametrize(
    "text",
    [
        *(b"\xff", b"a  b", b" a", b"a ", b" ", b"a\nb", b"a b{c", "a b\u2028".encode(), b"a\x00"),
        b"bob " + b"x" * 129,
        b" ".join(b"u%d" % n for n in range(UIDS_MAX + 1)),
        b" ".join(b"%0127d" % n for n in range(2 * UIDS_MAX)),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_a_damaged_roster_counts_as_absent(stored: StoredRosters, server: Server, text: bytes) -> None:
    server.client.hset(KEYS.rosters(KEYS.shard("ann")), "ann", text)
    assert stored.read(["ann"]) == {"ann": None}


@pytest.mark.parametrize("packed", [b"", b"\xc1", b"\x07", b"\x91\x07", b"\x91\xa1\xff"])
def test_a_damaged_message_tells_nothing(packed: bytes) -> None:
    assert read_changed(packed) == ()
