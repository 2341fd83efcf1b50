"""The table of users against a dict, and how its operations grow."""

import gc
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, sampled_from, text, tuples

from presence.watching.user_table import MAX_HOLDS, USERS_PER_BUCKET, WALK_FACTOR, UserTable

# Names that are parts of others, and those whose UTF-8 has the bytes of slots and every kind of first byte.
NAMES = ("a", "aa", "a000000", "000000", "", "\x00", "\x7f", "é", "ÿ", "þ", "߿", "￿", "\ud8ff", "\U0010ffff")


@given(lists(tuples(sampled_from(["hold", "release"]), sampled_from(NAMES) | text(max_size=3)), max_size=200))
def test_users_are_found_by_name_and_by_slot_while_they_are_held(steps: list[tuple[str, str]]) -> None:
    table = UserTable()
    held: dict[str, int] = {}
    slots: dict[str, int] = {}
    for step, uid in steps:
        if step == "hold":
            slot = table.hold(uid)
            assert slots.setdefault(uid, slot) == slot
            held[uid] = held.get(uid, 0) + 1
        elif uid in held:
            table.release(slots[uid])
            held[uid] -= 1
            if not held[uid]:
                del held[uid], slots[uid]
        assert len(table) == len(slots) == len(set(slots.values()))
        assert table.name_bytes == sum(len(each.encode("utf-8", "surrogatepass")) for each in slots)
        assert table.find(uid) == slots.get(uid)
        assert table.find("") == slots.get("")
    assert {uid: table.find(uid) for uid in (*NAMES, *slots)} == {
        uid: slots.get(uid) for uid in (*NAMES, *slots)
    }
    assert {table.name(slot) for slot in slots.values()} == set(slots)


def test_a_hundred_thousand_users_are_found_after_many_splits() -> None:
    table = UserTable()
    slots = {uid: table.hold(uid) for uid in (f"user-{number:06}" for number in range(100_000))}
    assert all(table.find(uid) == slot and table.name(slot) == uid for uid, slot in slots.items())
    assert table.find("user-100000") is None


def test_slots_are_reused() -> None:
    table = UserTable()
    for uid in ("ann", "bob", "cy"):
        table.hold(uid)
    slot = table.find("bob")
    assert slot is not None
    table.release(slot)
    assert table.hold("dee") == slot


def test_a_user_is_held_so_many_times_at_most() -> None:
    table = UserTable()
    for _ in range(MAX_HOLDS):
        table.hold("ann")
    with pytest.raises(OverflowError):
        table.hold("ann")
    assert table.find("ann") == 0


def test_an_empty_table_has_no_memory_of_its_users() -> None:
    table = UserTable()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        slots = [table.hold(f"user-{number}") for number in range(1_000)]
        for slot in slots:
            table.release(slot)
        del slots, slot
        gc.collect()  # with which Python gives up the tuples that it keeps
        assert tracemalloc.get_traced_memory()[0] - before < 2_000
    finally:
        tracemalloc.stop()


@given(integers(1, 5), integers(0, 2**32))
def test_a_walk_meets_each_user_who_stays_in_the_shard_once(most: int, seed: int) -> None:
    table, play = UserTable(), random.Random(seed)
    stay = {f"stay-{number}" for number in range(20)}
    others: list[int] = []
    for uid in sorted(stay):
        table.set_shard(table.hold(uid), 7)
        others.append(table.hold(f"other-{uid}"))
    met: list[str] = []
    cursor: int | None = None
    while cursor != 0:
        slots, cursor = table.walk(7, cursor or 0, most)
        assert len(slots) <= most
        met += [uid for uid in map(table.name, slots) if uid in stay]
        for _ in range(play.randrange(4)):  # meanwhile users come and go, and buckets are split
            others.append(table.hold(f"new-{play.randrange(1000)}-{len(others)}"))
            table.set_shard(others[-1], play.choice((7, 8)))
            table.release(others.pop(play.randrange(len(others))))
    assert sorted(met) == sorted(stay)


def test_a_step_of_a_walk_is_bounded_where_no_user_is_of_the_shard() -> None:
    table = UserTable()
    for number in range(100):
        table.set_shard(table.hold(f"user-{number}"), 7 if number < 99 else 8)
    assert table.walk(8, 0, 1) == ([], WALK_FACTOR)
    assert table.walk(8, 99 - 99 % WALK_FACTOR, 1) == ([99], 0)


def test_a_bucket_stays_small() -> None:
    """With names of one length the longest bucket tells how many users a search may have to look at."""
    table = UserTable()
    for number in range(20_000):
        table.hold(f"{number:05}")
    longest = max(map(len, table._buckets)) // len(b"00000\xfe000000\xff")
    assert longest <= 5 * USERS_PER_BUCKET
