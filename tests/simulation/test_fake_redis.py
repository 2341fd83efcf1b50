"""The fake Redis where a comparison with a real one does not reach: time, snapshots, restarts, long scans."""

import pytest

from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from tests.simulation.fake.client import connector
from tests.simulation.fake.server import FakeRedis
from tests.simulation.fake.values import Hash, ReplyError, Stream
from tests.store.driving import Hand, end, login

START_S = 1_700_000_000.0


class SettableClock:
    def __init__(self) -> None:
        self.now = START_S

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def server(clock: SettableClock) -> FakeRedis:
    return FakeRedis(clock)


def opened(server: FakeRedis) -> Hand:
    shape = Shape(Keys(), maxlen=1_000_000, seen_retention_ms=10**13)
    hand = Hand(RedisStore("redis://fake", shape, connector(server)), "a")
    hand.open()
    return hand


def test_ids_rise_though_the_clock_goes_back(server: FakeRedis, clock: SettableClock) -> None:
    first = server.execute(b"XADD", b"s", b"*", b"a", b"1")
    clock.now -= 5
    assert (first, server.execute(b"XADD", b"s", b"*", b"a", b"1")) == (
        b"1700000000000-0",
        b"1700000000000-1",
    )


def test_a_key_goes_in_the_ms_after_its_time(server: FakeRedis, clock: SettableClock) -> None:
    server.execute(b"SET", b"k", b"v")
    server.execute(b"PEXPIRE", b"k", b"2000")
    clock.now += 2.0
    assert server.execute(b"EXISTS", b"k") == 1
    clock.now += 0.001
    assert server.execute(b"EXISTS", b"k") == 0


def test_time_stands_still_in_a_script(server: FakeRedis) -> None:
    ticking = iter(range(100))
    server._now = lambda: START_S + next(ticking)
    text = b"local a, b = redis.call('TIME'), redis.call('TIME') return b[1] - a[1]"
    assert server.execute(b"EVAL", text, b"0") == 0


def test_what_a_failing_script_has_written_stays(server: FakeRedis) -> None:
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        server.execute(b"EVAL", b"redis.call('SET', 'k', 'v') redis.call('HGET', 'k', 'f')", b"0")
    assert server.data[b"k"] == b"v"


def test_a_script_leaves_nothing_for_the_next(server: FakeRedis) -> None:
    for text in (b"x = 1", b"string.x = 1", b"redis.call = nil"):
        with pytest.raises(ReplyError, match="Attempt to modify a readonly table"):
            server.execute(b"EVAL", text, b"0")


def test_a_snapshot_is_what_was_then(server: FakeRedis) -> None:
    a = opened(server)
    a.apply(login("ann", "s1"))
    server.execute(b"ZADD", b"z", b"1", b"m")
    before = server.snapshot()
    a.apply(end("ann", "s1"), login("bob", "s2"))
    server.execute(b"ZADD", b"z", b"2", b"m")
    for _ in range(2):  # what follows a restoration does not reach the snapshot either
        server.restore(before)
        stream = server.data[Keys().events(0).encode()]
        assert isinstance(stream, Stream)
        assert (len(stream.ids), server.execute(b"ZSCORE", b"z", b"m")) == (1, b"1")
        assert server.execute(b"HGETALL", b"presence:{0}:online")[::2] == [b"ann"]
        server.execute(b"ZADD", b"z", b"3", b"m")


def test_a_deadline_is_part_of_a_snapshot(server: FakeRedis, clock: SettableClock) -> None:
    server.execute(b"SET", b"k", b"v")
    server.execute(b"PEXPIRE", b"k", b"10000")
    before = server.snapshot()
    server.execute(b"SET", b"k", b"w")
    server.restore(before)
    clock.now += 10.001
    assert server.execute(b"EXISTS", b"k") == 0


def test_a_restart_has_another_history_and_no_scripts(server: FakeRedis) -> None:
    a = opened(server)
    before, kept = server.replication_id, server.snapshot()
    server.restart(kept)
    assert server.replication_id != before
    assert not server.scripts
    assert a.send(a.batch([login("ann", "s1")], 2)).status.value == "history"


def test_a_scan_of_a_large_hash_gives_all_who_stay(server: FakeRedis) -> None:
    fields = [b"f%d" % i for i in range(2000)]
    server.data[b"h"] = Hash(dict.fromkeys(fields, b"v"))
    cursor, found = b"0", set()
    while True:
        cursor, flat = server.execute(b"HSCAN", b"h", cursor, b"COUNT", b"100")
        found |= set(flat[::2])
        server.execute(b"HDEL", b"h", *flat[::4])
        if cursor == b"0":
            break
    assert found == set(fields)
