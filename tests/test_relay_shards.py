"""Shards on several servers, of which one is away."""

from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock

from presence.changes import Op
from presence.outbox import Outbox
from presence.reach import GLANCE_S
from presence.relay import PROBE_INTERVAL_S, Relay
from presence.runtime import TrioBell
from presence.store.batches import StoreError, StoreUnavailable
from tests.relaying import NOTHING, AtOnce, FakeStore, Told, login, until


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(lambda uid: int(uid[-1]), 3, max_items=10_000)


@pytest.fixture
def fake() -> FakeStore:
    return FakeStore()


def a_relay(outbox: Outbox, fake: FakeStore, **more: Any) -> Relay:
    return Relay(
        outbox,
        fake,
        node="first",
        live=lambda _shard: [],
        verdicts=Told().verdicts,
        memory=NOTHING,
        clock=trio.current_time,
        **{"runtime": AtOnce(), **more},
    )


@pytest.fixture
def relay(outbox: Outbox, fake: FakeStore) -> Relay:
    return a_relay(outbox, fake)


async def test_the_others_go_on(
    clock: MockClock, relay: Relay, outbox: Outbox, fake: FakeStore, nursery: trio.Nursery
) -> None:
    nursery.start_soon(relay.run)
    await until(lambda: len(fake.counters) == 3)
    fake.away = {1}
    outbox.extend([login("u1"), login("u0"), login("u2")])
    await until(lambda: len(fake.applied) == 2)
    assert not relay.statistics().connected
    await trio.sleep(10)
    outbox.append(login("v0"))
    began = trio.current_time()
    await until(lambda: len(fake.applied) == 3)
    assert trio.current_time() - began < 0.3
    assert relay.statistics().backlog == 1


async def test_what_waited_is_told_when_it_is_back(
    clock: MockClock, relay: Relay, outbox: Outbox, fake: FakeStore, nursery: trio.Nursery
) -> None:
    nursery.start_soon(relay.run)
    await until(lambda: len(fake.counters) == 3)
    fake.away = {1, 2}
    outbox.extend([login("u1"), login("u2")])
    with structlog.testing.capture_logs() as lines:
        await trio.sleep(10)
        fake.away = {2}
        await until(lambda: fake.applied)
        assert not relay.statistics().connected
        fake.away = set()
        await until(lambda: relay.statistics().connected)
    assert [each.uid for each in fake.applied] == ["u1", "u2"]
    assert [line["event"] for line in lines] == ["Redis is away", "Redis is back"]


async def test_one_that_is_away_is_asked_at_a_slow_pace(
    clock: MockClock, relay: Relay, outbox: Outbox, fake: FakeStore, nursery: trio.Nursery
) -> None:
    nursery.start_soon(relay.run)
    await until(lambda: len(fake.counters) == 3)
    fake.away = {1}
    outbox.extend(login(f"{n}-1") for n in range(600))  # more than a batch: nothing is to be hurried by it
    before = fake.probes
    await trio.sleep(20)
    assert 20 < fake.probes - before < 80  # brief pauses at first, about a second each later


async def test_the_others_are_probed_as_ever(
    clock: MockClock, relay: Relay, fake: FakeStore, nursery: trio.Nursery
) -> None:
    nursery.start_soon(relay.run)
    await until(lambda: len(fake.counters) == 3)
    fake.away = {1}
    await trio.sleep(1)
    fake.probed.clear()
    await trio.sleep(10 * PROBE_INTERVAL_S)
    assert 9 <= fake.probed.count(0) <= 11


async def test_a_start_needs_one_of_them(
    clock: MockClock, relay: Relay, outbox: Outbox, fake: FakeStore, nursery: trio.Nursery
) -> None:
    fake.away = {0, 1, 2}
    with pytest.raises(StoreUnavailable):
        await relay.start()
    fake.away = {2}
    await relay.start()
    nursery.start_soon(relay.run)
    outbox.extend([login("u2"), login("u0")])
    await until(lambda: fake.applied)
    assert not relay.statistics().connected
    fake.away = set()
    await until(lambda: len(fake.applied) == 2)


async def test_a_resync_does_not_wait_for_the_server_that_has_the_version(
    clock: MockClock, relay: Relay, outbox: Outbox, fake: FakeStore, nursery: trio.Nursery
) -> None:
    nursery.start_soon(relay.run)
    await until(lambda: len(fake.counters) == 3)
    fake.meta_away = True
    fake.counters.clear()
    outbox.append(login("u0"))
    await until(lambda: fake.applied)
    checks, fake.meta_away = fake.checks, False
    await until(lambda: fake.checks > checks)


async def test_each_refusal_is_told_once(
    clock: MockClock, relay: Relay, fake: FakeStore, nursery: trio.Nursery
) -> None:
    nursery.start_soon(relay.run)
    await until(lambda: len(fake.counters) == 3)
    with structlog.testing.capture_logs() as lines:
        fake.refusing = {0, 1}
        await trio.sleep(30)
        fake.refusing = set()
        await until(lambda: relay.statistics().connected)
    told = [line["error"] for line in lines if line["event"] == "Redis refused"]
    assert sorted(told) == ["NOPERM in 0", "NOPERM in 1"]


async def test_no_start_against_a_refusal(clock: MockClock, relay: Relay, fake: FakeStore) -> None:
    fake.refusing = {2}
    with pytest.raises(StoreError):
        await relay.start()


class LateBell(TrioBell):
    """Wakes half a second late, as on a machine without time to run."""

    async def wait(self, timeout_s: float) -> bool:
        rung = await super().wait(timeout_s)
        await trio.sleep(0.5)
        return rung


class Late(AtOnce):
    """The same."""

    def bell(self) -> TrioBell:
        return LateBell()

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds + (0.5 if seconds else 0.0))


async def test_a_loop_that_is_always_late_tells_ends_all_the_same(
    clock: MockClock, outbox: Outbox, fake: FakeStore, nursery: trio.Nursery
) -> None:
    relay = a_relay(outbox, fake, known=lambda: ("second",), runtime=Late())
    nursery.start_soon(relay.run)
    outbox.append(login("u1"))
    await until(lambda: fake.applied)
    await trio.sleep(PROBE_INTERVAL_S + 1.0)
    outbox.append(login("u1")._replace(op=Op.END))
    with trio.fail_after(5):
        await until(lambda: len(fake.applied) == 2)


@pytest.mark.parametrize("peers", [("second",), ()])
async def test_where_there_are_peers_an_end_after_a_rest_waits_for_their_logins(
    peers: tuple[str, ...], clock: MockClock, outbox: Outbox, fake: FakeStore, nursery: trio.Nursery
) -> None:
    relay = a_relay(outbox, fake, known=lambda: peers)
    nursery.start_soon(relay.run)
    outbox.append(login("u1"))
    await until(lambda: fake.applied)
    await trio.sleep(PROBE_INTERVAL_S + 1.0)
    outbox.extend([login("u1")._replace(op=Op.END), login("u2")])
    began = trio.current_time()
    told: dict[str, float] = {}
    while len(told) < 2:
        told |= {change.uid: trio.current_time() - began for change in fake.applied[1 + len(told) :]}
        await trio.sleep(0.001)
    assert told["u2"] < 0.1
    assert (told["u1"] >= GLANCE_S) == bool(peers)
    assert told["u1"] < GLANCE_S + 0.1
