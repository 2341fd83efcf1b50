"""Data of version 1, as servers of that release wrote them, and data of a later version."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from presence.common.errors import StoreError, StoreMismatch
from presence.outbox.replies import ReplyStatus
from presence.store import conversion
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import MAX_FIELDS_PER_CALL, Shape
from presence.store.script_runner import Call
from tests.store.driving import (
    Hand,
    brief_events,
    check_alternation,
    end,
    events,
    login,
    online_sessions,
    owned,
    probed,
    write_former_data,
)
from tests.store.servers import Server

KEYS = Keys(shards=2)
SHARDS = range(2)
NODES = ("node-a", "node-b")
LIVES_MS = 10**14


@pytest.fixture
def former(server: Server) -> Server:
    write_former_data(lambda _key: server.client)
    return server


@pytest.fixture
def wide(server: Server) -> Iterator[RedisStore]:
    store = RedisStore(server.url, Shape(KEYS, maxlen=1000, seen_retention_ms=10**13))
    yield store
    store.close()


def content(server: Server) -> dict[bytes, bytes]:
    return {key: server.client.dump(key) for key in server.client.scan_iter()}  # type: ignore[misc]  # redis-py's


def test_a_conversion_keeps_users_and_sessions_and_old_nodes_can_be_swept(
    former: Server, wide: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "MAX_FIELDS_PER_CALL", 1)
    before = [(online_sessions(former.client, shard), events(former.client, shard)) for shard in SHARDS]
    with capture_logs() as logs:
        wide.check_meta(SHARDS)
    assert {(each["event"], each["shard"]) for each in logs} == {("shard converted", s) for s in SHARDS}
    for shard in SHARDS:
        assert (online_sessions(former.client, shard), events(former.client, shard)) == before[shard]
        assert set().union(*(owned(former.client, node, shard) for node in NODES)) == before[shard][0]
        for node in NODES:
            fields: Any = former.client.hkeys(KEYS.node(shard, node))
            assert {*fields} == {b"gen", b"n", b"reply", b"trail", b"complete", b"fence"}
        assert former.client.hget(KEYS.shard_meta(shard), "version") == b"2"
        assert not former.client.exists(KEYS.holding(shard))
    assert former.client.hgetall(KEYS.meta) == {b"version": b"2", b"shards": b"2"}
    hand = Hand(wide, "c")
    assert hand.open().status is ReplyStatus.OK
    count = len(brief_events(former.client))
    hand.apply(login("bob", "s10"), login("eve", "s11", "desk"))
    assert [hand.sweep(node).done for node in NODES] == [True, True]
    hand.apply(end("eve", "s11", "desk"))
    assert sorted(brief_events(former.client)[count:]) == [
        ("offline", "eve", "logout"),
        ("offline", "gus", "node_down"),
        ("offline", "ida", "node_down"),
    ]
    assert check_alternation(events(former.client)) == {"bob"}
    for node in NODES:
        assert not former.client.exists(KEYS.sessions(0, node), KEYS.pending(0, node))


def test_an_interrupted_conversion_continues(
    former: Server, wide: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [online_sessions(former.client, shard) for shard in SHARDS]
    evaluate, rounds = wide.evaluate, iter(range(99))
    monkeypatch.setattr(
        wide, "evaluate", lambda calls: [StoreError("no more")] if next(rounds) == 1 else evaluate(calls)
    )
    with pytest.raises(StoreError, match="no more"):
        wide.check_meta([0])
    assert owned(former.client, "node-a")
    assert not former.client.exists(KEYS.shard_meta(0))
    assert former.client.hgetall(KEYS.meta)[b"version"] == b"2", "servers of version 1 refuse to start now"
    wide.check_meta(SHARDS)
    assert [set().union(*(owned(former.client, node, s) for node in NODES)) for s in SHARDS] == wanted
    after = content(former)
    wide.check_meta(SHARDS)
    assert content(former) == after, "another conversion changes nothing"


def test_a_large_node_is_converted_in_bounded_calls(
    server: Server, wide: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: dict[Any, Any] = {"gen": 1} | {f"u{i} ": f"1 s{i}" for i in range(5000)}
    server.client.hset(KEYS.node(0, "node-a"), mapping=fields)
    server.client.hset(KEYS.traces(0), "node-a", "1 1 0 -")
    evaluate, rounds = wide.evaluate, 0

    def counting(calls: Sequence[Call]) -> list[Any]:
        nonlocal rounds
        rounds += 1
        return evaluate(calls)

    monkeypatch.setattr(wide, "evaluate", counting)
    wide.check_meta(SHARDS)
    assert server.client.hlen(KEYS.sessions(0, "node-a")) == 5000
    assert server.client.hlen(KEYS.node(0, "node-a")) == 2
    assert rounds > 5000 / (2 * MAX_FIELDS_PER_CALL)


@pytest.mark.parametrize(
    ("lease_end_ms", "row", "description", "is_running"),
    [
        (LIVES_MS, "7", "{}", True),
        (LIVES_MS, "7", "no JSON", True),
        (1, "7", "{}", False),
        (LIVES_MS, "7 left 5", "{}", False),
        (LIVES_MS, "7 node-b 1", "{}", False),
        (LIVES_MS, "7", '{"data_version": "2"}', False),
    ],
    ids=["alive", "described badly", "killed long ago", "drained", "declared dead", "of version 2"],
)
def test_a_server_does_not_convert_while_one_of_version_1_is_running(
    former: Server, wide: RedisStore, lease_end_ms: int, row: str, description: str, *, is_running: bool
) -> None:
    ends, leases, stats, *_ = KEYS.lease_keys
    former.client.zadd(ends, {"node-a": lease_end_ms})
    former.client.hset(leases, "node-a", row)
    former.client.hset(stats, "node-a", description)
    before = content(former)
    if is_running:
        with pytest.raises(StoreMismatch, match="a server of that version is running: node-a; stop all"):
            wide.check_meta(SHARDS)
        assert content(former) == before
    else:
        wide.check_meta(SHARDS)
        assert former.client.hget(KEYS.shard_meta(1), "version") == b"2"


def test_a_node_opens_no_generation_in_a_shard_of_another_version(former: Server, wide: RedisStore) -> None:
    hand = Hand(wide, "c")
    with pytest.raises(StoreError, match="has version 1, not 2"):
        hand.open()
    assert not former.client.exists(KEYS.node(0, "c"))
    wide.check_meta(SHARDS)
    assert hand.open().status is ReplyStatus.OK
    former.client.hset(KEYS.shard_meta(0), "version", "3")
    with pytest.raises(StoreError, match="has version 3, not 2"):
        hand.open(2)
    with pytest.raises(
        StoreMismatch, match=r"presence:\{0\}:meta has data of version 3, this release knows version 2"
    ):
        wide.check_meta(SHARDS)


def test_a_new_shard_gets_its_version_from_the_first_node(server: Server, wide: RedisStore) -> None:
    wide.check_meta(SHARDS)
    assert not server.client.exists(KEYS.shard_meta(0))
    assert Hand(wide, "c").open().status is ReplyStatus.OK
    assert server.client.hgetall(KEYS.shard_meta(0)) == {b"version": b"2"}


def test_a_server_of_version_1_that_resumes_later_writes_nothing(former: Server, wide: RedisStore) -> None:
    hand = Hand(wide, "node-a")
    hand.generation, hand.n = 1, 3
    wide.check_meta(SHARDS)
    hand.replication_id = probed(wide, "node-a").replication_id
    assert hand.apply(login("zoe", "s20")).status is ReplyStatus.FENCED
