"""The fake Redis where a comparison with a real one does not reach: time, faults, subscribers, the client."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from presence.store.batches import StoreUnavailable
from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from tests.simulation.fake.client import Answers, FakeClient, Perform, at_once, connector
from tests.simulation.fake.server import FakeRedis
from tests.simulation.fake.values import ReplyError
from tests.store.driving import Hand, end, login

START_S = 1_700_000_000.0


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = START_S

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> FakeRedis:
    return FakeRedis(clock)


def store(server: FakeRedis, deliver: Callable[[Perform], Answers] = at_once) -> RedisStore:
    shape = Shape(Keys(), maxlen=1_000_000, seen_retention_ms=10**13)
    return RedisStore("redis://fake", shape, connector(server, deliver))


def events(server: FakeRedis) -> list[tuple[bytes, bytes]]:
    entries: Any = FakeClient(server).xrange(Keys().events(0))
    return [(entry, fields[b"type"]) for entry, fields in entries]


def test_the_store_runs_over_it(server: FakeRedis, clock: Clock) -> None:
    a = Hand(store(server), "a")
    a.store.check_meta()
    a.open()
    a.apply(login("ann", "s1"))
    clock.now += 1.5
    a.apply(end("ann", "s1"))
    assert events(server) == [(b"1700000000000-0", b"online"), (b"1700000001500-0", b"offline")]


def test_ids_rise_though_the_clock_goes_back(server: FakeRedis, clock: Clock) -> None:
    first = server.execute(b"XADD", b"s", b"*", b"a", b"1")
    clock.now -= 5
    assert (first, server.execute(b"XADD", b"s", b"*", b"a", b"1")) == (
        b"1700000000000-0",
        b"1700000000000-1",
    )


def test_a_key_goes_in_the_ms_after_its_time(server: FakeRedis, clock: Clock) -> None:
    server.execute(b"SET", b"k", b"v", b"PX", b"2000")
    clock.now += 2.0
    assert server.execute(b"GET", b"k") == b"v"
    clock.now += 0.001
    assert server.execute(b"GET", b"k") is None


def test_time_stands_still_in_a_script(server: FakeRedis) -> None:
    ticking = iter(range(100))
    server._now = lambda: START_S + next(ticking)
    text = b"local a, b = redis.call('TIME'), redis.call('TIME') return b[1] - a[1]"
    assert server.execute(b"EVAL", text, b"0") == 0


def test_what_a_failing_script_has_written_stays(server: FakeRedis) -> None:
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        server.execute(b"EVAL", b"redis.call('SET', 'k', 'v') redis.call('HGET', 'k', 'f')", b"0")
    assert server.execute(b"GET", b"k") == b"v"


def test_a_script_leaves_nothing_for_the_next(server: FakeRedis) -> None:
    for text in (b"x = 1", b"string.x = 1", b"redis.call = nil"):
        with pytest.raises(ReplyError, match="Attempt to modify a readonly table"):
            server.execute(b"EVAL", text, b"0")


def test_a_snapshot_is_what_was_then(server: FakeRedis) -> None:
    a = Hand(store(server), "a")
    a.open()
    a.apply(login("ann", "s1"))
    server.execute(b"ZADD", b"z", b"1", b"m")
    before, told = server.snapshot(), events(server)
    a.apply(end("ann", "s1"), login("bob", "s2"))
    server.execute(b"ZADD", b"z", b"2", b"m")
    for _ in range(2):  # what follows a restoration does not reach the snapshot either
        server.restore(before)
        assert (events(server), server.execute(b"ZSCORE", b"z", b"m")) == (told, b"1")
        assert server.execute(b"HGETALL", b"presence:{0}:online")[::2] == [b"ann"]
        server.execute(b"ZADD", b"z", b"3", b"m")


def test_a_deadline_is_part_of_a_snapshot(server: FakeRedis, clock: Clock) -> None:
    server.execute(b"SET", b"k", b"v", b"EX", b"10")
    before = server.snapshot()
    server.execute(b"SET", b"k", b"w")
    server.restore(before)
    clock.now += 10.001
    assert server.execute(b"EXISTS", b"k") == 0


def test_a_restart_has_another_history_and_no_scripts(server: FakeRedis) -> None:
    a = Hand(store(server), "a")
    a.open()
    before, kept = server.replication_id, server.snapshot()
    server.restart(kept)
    assert server.replication_id != before
    assert server.scripts == {}
    assert a.send(a.batch([login("ann", "s1")], 2)).status.value == "history"


def test_who_subscribes_hears_and_is_counted(server: FakeRedis) -> None:
    heard: list[tuple[bytes, bytes]] = []
    leave = server.subscribe(b"presence:online", lambda channel, message: heard.append((channel, message)))
    assert server.execute(b"PUBSUB", b"NUMSUB", b"presence:online") == [b"presence:online", 1]
    a = Hand(store(server), "a")
    a.open()
    a.apply(login("ann", "s1"))
    leave()
    a.apply(end("ann", "s1"), login("bob", "s2"))
    assert [channel for channel, _ in heard] == [b"presence:online"]
    assert b'"uid":"ann"' in heard[0][1]


def test_a_lost_answer_was_performed(server: FakeRedis) -> None:
    lost = False

    def deliver(perform: Perform) -> Answers:
        answers = perform()
        if lost:
            raise redis.TimeoutError
        return answers

    a = Hand(store(server, deliver), "a")
    a.open()
    lost = True
    with pytest.raises(StoreUnavailable):
        a.apply(login("ann", "s1"))
    assert len(events(server)) == 1


def test_errors_are_those_of_redis_py(server: FakeRedis) -> None:
    client = FakeClient(server)
    with pytest.raises(redis.exceptions.NoScriptError):
        client.evalsha("0" * 40, 0)
    with pytest.raises(redis.ResponseError, match="unknown command 'FOO'"):
        client.execute_command("FOO")
    pipeline = client.pipeline(transaction=False)
    pipeline.hset("h", "f", 1)
    pipeline.get("h")
    with pytest.raises(
        redis.ResponseError, match=r"Command # 2 \(GET h\) of pipeline caused error: WRONGTYPE"
    ):
        pipeline.execute()


def test_a_scan_of_a_large_hash_gives_all_who_stay(server: FakeRedis) -> None:
    client = FakeClient(server)
    client.hset("h", mapping={f"f{i}": "v" for i in range(2000)})
    cursor, found = b"0", set()
    while True:
        cursor, flat = client.execute_command("HSCAN", "h", cursor, "COUNT", 100)
        found |= set(flat[::2])
        client.hdel("h", *flat[::4])
        if cursor == b"0":
            break
    assert len(found) == 2000
