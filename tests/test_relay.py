"""The relay against a small fake store, in mock time, and once against a real server."""

import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event

import pytest
import structlog
import trio
from trio.testing import MockClock

from presence.changes import Change, Op
from presence.embedded import EmbeddedRedis, find_binary
from presence.outbox import Outbox
from presence.reach import BACKOFF_LIMIT_S
from presence.relay import GATHER_S, LOGOUT_PAUSE_S, PROBE_INTERVAL_S, Relay
from presence.store.batches import Step, StoreError, StoreMismatch, StoreUnavailable
from presence.store.client import open_client
from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from presence.store.replies import News, NewsKind, Probe, Reply, Superseded
from tests.relaying import NOTHING, AtOnce, FakeStore, Told, login, until
from tests.store.driving import check_alternation, events, online_sessions
from tests.store.servers import Server


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


@pytest.fixture
def fake() -> FakeStore:
    return FakeStore()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(lambda _uid: 0, 1, max_items=10_000)


@pytest.fixture
def relay(outbox: Outbox, fake: FakeStore, told: Told) -> Relay:
    return Relay(
        outbox,
        fake,
        node="first",
        live=lambda _shard: [],
        verdicts=told.verdicts,
        memory=NOTHING,
        clock=trio.current_time,
        runtime=AtOnce(),
    )


async def test_start_checks_the_data_and_probes(clock: MockClock, relay: Relay, fake: FakeStore) -> None:
    await relay.start()
    assert (fake.checks, fake.probes) == (1, 1)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreMismatch("16 shards, not 1")])
async def test_start_raises_what_keeps_it_from_redis(
    clock: MockClock, relay: Relay, fake: FakeStore, error: StoreUnavailable | StoreError
) -> None:
    fake.fail = error
    with pytest.raises(type(error)):
        await relay.start()


async def test_changes_arrive_in_order(
    clock: MockClock, relay: Relay, outbox: Outbox, fake: FakeStore, nursery: trio.Nursery
) -> None:
    nursery.start_soon(relay.run)
    outbox.extend(login(f"u{i}") for i in range(1500))
    assert await relay.drain(trio.current_time() + 30) == 0
    assert [c.uid for c in fake.applied] == [f"u{i}" for i in range(1500)]


async def test_changes_that_come_together_share_a_batch(
    clock: MockClock, relay: Relay, outbox: Outbox, fake: FakeStore, nursery: trio.Nursery
) -> None:
    nursery.start_soon(relay.run)
    await until(lambda: fake.batches)
    await trio.sleep(1)
    for i in range(3):
        outbox.append(login(f"u{i}"))
        await trio.sleep(0.005)
    await until(lambda: fake.applied)
    assert len(fake.applied) == 3
    assert len(fake.batches) == 3  # the opening, the one that says that all are registered, and this one


@pytest.mark.parametrize(("code", "waits"), [(100, False), (101, False), (201, True)])
async def test_a_logout_does_not_wait_for_company(
    clock: MockClock,
    relay: Relay,
    outbox: Outbox,
    fake: FakeStore,
    nursery: trio.Nursery,
    code: int,
    waits: bool,
) -> None:
    nursery.start_soon(relay.run)
    await until(lambda: fake.batches)
    await trio.sleep(1)
    outbox.append(login("u"))
    await trio.sleep(GATHER_S / 4)
    assert not fake.applied
    outbox.append(Change(Op.END, "u", "", "s", code, 0.0, 1000, 1000, 30_000))
    await trio.sleep(GATHER_S / 4)
    assert len(fake.applied) == (0 if waits else 2)
    await trio.sleep(GATHER_S)
    assert len(fake.applied) == 2


async def test_crowds_of_logouts_share_batches(
    clock: MockClock, relay: Relay, outbox: Outbox, fake: FakeStore, nursery: trio.Nursery
) -> None:
    nursery.start_soon(relay.run)
    await until(lambda: fake.batches)
    before = len(fake.batches)
    for i in range(1000):
        outbox.append(Change(Op.END, f"u{i}", "", "s", 100, 0.0, 1000, 1000, 30_000))
        await trio.sleep(0.001)
    await until(lambda: len(fake.applied) == 1000)
    assert len(fake.batches) - before <= 1.1 / LOGOUT_PAUSE_S


async def test_probes_keep_their_beat(
    clock: MockClock, relay: Relay, fake: FakeStore, nursery: trio.Nursery
) -> None:
    nursery.start_soon(relay.run)
    await trio.sleep(PROBE_INTERVAL_S * 10.5)
    assert 9 <= fake.probes <= 12


async def test_an_end_during_a_resync_follows_its_registration(
    clock: MockClock, outbox: Outbox, fake: FakeStore, told: Told, nursery: trio.Nursery
) -> None:
    users = [f"u{i}" for i in range(1500)]

    def live(_shard: int) -> Iterator[Change]:
        for uid in users:
            if uid == "u600":  # the first batch is on its way
                outbox.append(Change(Op.END, "u1499", "", "s", 201, 0.0, 1000, 1000, 30_000))
            yield Change(Op.REGISTER, uid, "", "s", 2, 0.0, 1000, 1000, 30_000)

    relay = Relay(
        outbox,
        fake,
        node="a",
        live=live,
        verdicts=told.verdicts,
        memory=NOTHING,
        clock=trio.current_time,
        runtime=AtOnce(),
    )
    nursery.start_soon(relay.run)
    await until(lambda: len(fake.applied) == len(users) + 1)
    assert [each.uid for each in fake.applied] == [*users, "u1499"]
    assert fake.applied[-1].op is Op.END


async def test_what_failed_is_sent_again(
    clock: MockClock, relay: Relay, outbox: Outbox, fake: FakeStore, nursery: trio.Nursery
) -> None:
    nursery.start_soon(relay.run)
    await until(lambda: fake.batches)
    fake.fail = StoreUnavailable("away")
    outbox.append(login("u"))
    await until(lambda: relay.statistics().retries > 5)
    assert not relay.statistics().connected
    fake.fail = None
    await until(lambda: fake.applied)
    assert [c.uid for c in fake.applied] == ["u"]
    await until(lambda: relay.statistics().connected)


async def test_pauses_grow_to_a_second(
    clock: MockClock, relay: Relay, fake: FakeStore, nursery: trio.Nursery
) -> None:
    fake.fail = StoreUnavailable("away")
    nursery.start_soon(relay.run)
    await trio.sleep(60)
    # 60 s of pauses between half a second and one; the first few are shorter.
    assert 60 / BACKOFF_LIMIT_S <= relay.statistics().retries <= 2 * 60 / BACKOFF_LIMIT_S + 10


async def test_an_outage_is_two_lines_in_the_log(
    clock: MockClock, relay: Relay, outbox: Outbox, fake: FakeStore, nursery: trio.Nursery
) -> None:
    with structlog.testing.capture_logs() as lines:
        fake.fail = StoreUnavailable("away")
        nursery.start_soon(relay.run)
        outbox.append(login("u"))
        await trio.sleep(10)
        fake.fail = None
        await until(lambda: relay.statistics().connected)
    away, back = lines
    assert (away["event"], back["event"]) == ("Redis is away", "Redis is back")
    assert 9 < back["away_s"] < 12
    assert back["waiting"] in {0, 1}


async def test_an_answer_that_waiting_may_not_cure_is_logged_and_retried(
    clock: MockClock, relay: Relay, outbox: Outbox, fake: FakeStore, nursery: trio.Nursery
) -> None:
    nursery.start_soon(relay.run)
    await until(lambda: fake.batches)
    fake.answers = [StoreError("WRONGTYPE")]
    with structlog.testing.capture_logs() as lines:
        outbox.append(login("u"))
        await until(lambda: fake.applied)
    assert [(line["log_level"], line["error"]) for line in lines if "error" in line] == [
        ("error", "WRONGTYPE")
    ]
    assert [c.uid for c in fake.applied] == ["u"]


async def test_a_fenced_node_goes_on_under_a_new_id(
    clock: MockClock,
    relay: Relay,
    outbox: Outbox,
    fake: FakeStore,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nursery.start_soon(relay.run)
    await until(lambda: fake.batches)
    apply, fenced = fake.apply, list[bool]()

    def noting(steps: Sequence[Step]) -> list[Reply | StoreUnavailable | StoreError]:
        fenced.append(relay.is_fenced)
        return apply(steps)

    monkeypatch.setattr(fake, "apply", noting)
    fake.fenced = {"first"}
    outbox.append(login("u"))
    await until(lambda: fake.applied)
    assert fenced[:2] == [False, True]
    assert fake.counters[0].node == "second"
    await until(lambda: not relay.is_fenced)


async def test_a_probe_that_sees_the_fence_is_enough(
    clock: MockClock, relay: Relay, fake: FakeStore, nursery: trio.Nursery
) -> None:
    nursery.start_soon(relay.run)
    await until(lambda: fake.batches)
    fake.fenced = {"first"}
    await until(lambda: fake.counters[0].node == "second")


async def test_a_probe_that_finds_no_counter_begins_a_resync(
    clock: MockClock, relay: Relay, fake: FakeStore, nursery: trio.Nursery
) -> None:
    nursery.start_soon(relay.run)
    await until(lambda: fake.batches)
    checks = fake.checks
    fake.counters.clear()
    await until(lambda: fake.counters)
    assert fake.counters[0].generation == 2
    assert fake.checks > checks  # the version was lost, too
    assert relay.statistics().resyncs == 1


async def test_superseded_sessions_are_told(
    clock: MockClock, relay: Relay, outbox: Outbox, fake: FakeStore, told: Told, nursery: trio.Nursery
) -> None:
    nursery.start_soon(relay.run)
    await until(lambda: fake.batches)
    fake.superseded = (Superseded("u", "", "s"),)
    outbox.append(login("u"))
    await until(lambda: told.superseded)
    assert told.superseded == [Superseded("u", "", "s")]


async def test_displaced_sessions_are_told(
    clock: MockClock, relay: Relay, fake: FakeStore, told: Told, nursery: trio.Nursery
) -> None:
    fake.inbox = (News(NewsKind.DISPLACED, "u", "", "s", "other", return_allowed=True),)
    nursery.start_soon(relay.run)
    await until(lambda: told.news)
    assert told.news == [News(NewsKind.DISPLACED, "u", "", "s", "other", return_allowed=True)]


async def test_drain_says_how_many_changes_stayed(
    clock: MockClock, relay: Relay, outbox: Outbox, fake: FakeStore, nursery: trio.Nursery
) -> None:
    fake.fail = StoreUnavailable("away")
    nursery.start_soon(relay.run)
    outbox.extend([login("u"), login("w")])
    before = trio.current_time()
    assert await relay.drain(before + 5) == 2
    assert trio.current_time() - before == pytest.approx(5, abs=0.1)


class StuckStore(FakeStore):
    """A store whose calls hang until the connection is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.freed = Event(), Event()

    def probe(
        self, node: str, inbox_read: Mapping[int, int]
    ) -> dict[int, Probe | StoreUnavailable | StoreError]:
        self.entered.set()
        assert self.freed.wait(10)
        return dict.fromkeys(inbox_read, StoreUnavailable("closed"))

    def close(self) -> None:
        super().close()
        self.freed.set()


async def test_a_cancelled_call_closes_the_connection(outbox: Outbox, told: Told) -> None:
    store = StuckStore()
    relay = Relay(outbox, store, node="first", live=lambda _shard: [], verdicts=told.verdicts, memory=NOTHING)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay.run)
        await trio.to_thread.run_sync(store.entered.wait)
        nursery.cancel_scope.cancel()
    assert store.closed == 1


# Against a real server


@pytest.fixture(params=[1, 16])
def shape(request: pytest.FixtureRequest) -> Shape:
    return Shape(Keys(shards=request.param), maxlen=100_000, seen_retention_ms=10**13)


@pytest.fixture
def redis_store(redis_server: EmbeddedRedis, shape: Shape) -> Iterator[RedisStore]:
    store = RedisStore(redis_server.url, shape)
    yield store
    store.close()


async def with_relay(
    store: RedisStore, shape: Shape, told: Told, body: Callable[[Outbox, Relay], Awaitable[None]]
) -> None:
    outbox = Outbox(shape.keys.shard, shape.keys.shards, max_items=10_000)
    relay = Relay(outbox, store, node="first", live=lambda _shard: [], verdicts=told.verdicts, memory=NOTHING)
    await relay.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay.run)
        await body(outbox, relay)
        nursery.cancel_scope.cancel()


async def test_changes_reach_a_real_server(
    redis_server: EmbeddedRedis, redis_store: RedisStore, shape: Shape, told: Told
) -> None:
    async def body(outbox: Outbox, relay: Relay) -> None:
        outbox.extend(login(f"u{i}")._replace(at=time.monotonic()) for i in range(1000))
        assert await relay.drain(trio.current_time() + 5) == 0

    await with_relay(redis_store, shape, told, body)
    client = open_client(redis_server.url)
    shards = range(shape.keys.shards)
    assert sum(len(events(client, shard)) for shard in shards) == 1000
    assert sum(len(online_sessions(client, shard)) for shard in shards) == 1000
    client.close()


@pytest.fixture
def killable() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        server = Server(find_binary(), Path(folder))
        yield server
        server.close()


async def test_an_outage_ends_with_every_change_in_an_empty_server(
    killable: Server, shape: Shape, told: Told
) -> None:
    store = RedisStore(killable.url, shape)

    async def body(outbox: Outbox, relay: Relay) -> None:
        outbox.extend(login(f"u{i}")._replace(at=time.monotonic()) for i in range(500))
        assert await relay.drain(trio.current_time() + 5) == 0
        killable.kill()
        outbox.extend(login(f"u{i}")._replace(op=Op.END, code=201, at=time.monotonic()) for i in range(500))
        while relay.statistics().retries < 3:  # noqa: ASYNC110 - the relay tells nobody of its failures
            await trio.sleep(0.05)
        await trio.to_thread.run_sync(killable.start)
        began = time.monotonic()
        assert await relay.drain(trio.current_time() + 5) == 0
        print(f"outbox empty {time.monotonic() - began:.2f} s after Redis answered")

    await with_relay(store, shape, told, body)
    stream = [event for shard in range(shape.keys.shards) for event in events(killable.client, shard)]
    assert len(stream) == 1000
    assert check_alternation(stream) == set()
    assert killable.client.hgetall(shape.keys.meta)[b"shards"] == str(shape.keys.shards).encode()
    store.close()
