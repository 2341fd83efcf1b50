"""The lease table, by script."""

import time
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from presence.cluster.lease_table import LeaseRow
from presence.store.keys import Keys
from presence.store.redis_store import RedisLeaseTable
from tests.store.servers import Server

KEYS = Keys()
LEASE_S = 10.0


@pytest.fixture
def table(server: Server) -> Iterator[RedisLeaseTable]:
    table = RedisLeaseTable(server.url, KEYS, LEASE_S)
    yield table
    table.close()


def test_a_renewal_returns_all_rows(table: RedisLeaseTable) -> None:
    table.renew("a", 1, "{}", [])
    rows = table.renew("b", 7, "{}", [])
    assert rows is not None
    assert {node: (row.counter, row.sweeper) for node, row in rows.items()} == {
        "a": ("1", ""),
        "b": ("7", ""),
    }
    assert len({key_slot(key.encode()) for key in KEYS.lease_keys}) == 1
    assert rows["b"].lease_end_ms == pytest.approx((time.time() + LEASE_S) * 1000, abs=2000)


def test_a_renewal_says_whether_its_node_had_no_row(table: RedisLeaseTable, server: Server) -> None:
    def is_new(counter: int) -> bool:
        rows = table.renew("a", counter, "{}", [])
        assert rows is not None
        return rows["a"].is_new

    assert [is_new(1), is_new(2)] == [True, False]
    server.client.flushall()
    assert [is_new(3), is_new(4)] == [True, False]


def test_a_tombstone_refuses_renewals_and_a_removed_node_stays_dead(
    table: RedisLeaseTable, server: Server
) -> None:
    leases, stats, tombs = KEYS.lease_keys[1:]
    server.client.zadd(tombs, {"old": 1.0})
    table.renew("a", 5, "{}", [])
    assert table.claim("a", "5", "5 b 1")
    assert table.renew("a", 6, "{}", []) is None
    rows = table.renew("b", 1, "{}", [])
    assert rows is not None
    assert (rows["a"].counter, rows["a"].sweeper, rows["a"].sweeper_n) == ("5", "b", 1)
    assert table.claim("a", "5 b 1", "")
    assert table.renew("a", 6, "{}", []) is None
    assert table.renew("b", 1, "{}", []).keys() == {"b"}  # type: ignore[union-attr]
    assert not server.client.hexists(leases, "a")
    assert not server.client.hexists(stats, "a")
    assert server.client.zrange(tombs, 0, -1) == [b"a"], "an old tombstone is forgotten"


@pytest.mark.parametrize("late", [5, 6])
def test_a_late_renewal_does_not_prove_life(table: RedisLeaseTable, late: int) -> None:
    table.renew("a", 6, "{}", [])
    assert table.claim("dead", "", "0 a 1")
    before = table.renew("b", 1, "{}", [])
    assert table.renew("a", late, "{}", ["dead"]) is not None
    after = table.renew("b", 2, "{}", [])
    assert before is not None
    assert after is not None
    assert {**before, "b": None} == {**after, "b": None}


def test_only_one_node_that_claims_an_unchanged_row_wins(table: RedisLeaseTable) -> None:
    table.renew("a", 5, "{}", [])
    table.renew("a", 6, "{}", [])
    assert not table.claim("a", "5", "5 b 1")
    assert [table.claim("a", "6", f"6 {me} 1") for me in "bc"] == [True, False]
    assert [table.claim("ghost", "", f"0 {me} 1") for me in "bc"] == [True, False], "without a row"


def test_the_sweeper_advances_its_own_tombstones_only(table: RedisLeaseTable) -> None:
    table.claim("x", "", "3 b 1")
    table.claim("y", "", "3 c 1")
    rows = table.renew("b", 1, "{}", ["x", "y", "gone"])
    assert rows is not None
    assert (rows["x"].sweeper_n, rows["y"].sweeper_n) == (2, 1)
    assert "gone" not in rows


def test_a_node_that_left_is_marked_and_swept_like_any_other(table: RedisLeaseTable) -> None:
    table.renew("a", 5, '{"sessions": 7}', [])
    assert table.claim("a", "5", LeaseRow("5", "5").left_at(1_700_000_000_000).text)
    rows = table.renew("b", 1, "{}", [])
    assert rows is not None
    row = rows["a"]
    assert (row.counter, row.sweeper, row.left_ms) == ("5", "", 1_700_000_000_000)
    swept = row.claimed_by("b")
    assert table.claim("a", row.text, swept.text)
    assert table.remove("a", "another text") is None
    assert table.remove("a", swept.text) == '{"sessions": 7}'
