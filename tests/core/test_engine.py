"""What the engine counts, and packet floods. `test_engine_model.py` has everything together."""

import pytest

from presence import protocol
from presence.core.admission import PacketRate
from presence.core.changes import Op
from presence.protocol import Code, Kind
from tests.support.worlds import TICK, T, World, ended


@pytest.fixture
def world() -> World:
    return World()


def test_an_end_has_the_time_of_the_last_packet_and_keepalives_are_counted(world: World) -> None:
    default, longer = world.login(), world.login("bob", idle_timeout=60)
    world.pass_time(7.25)
    world.beat(default, longer)
    world.pass_time(T + TICK)
    assert world.history()[2:] == [ended(Code.IDLE_TIMEOUT)]
    assert world.changes[-1].last_seen_ms == 1_700_000_007_250
    assert world.engine.statistics().keepalives == 2


# Packet floods

RATE, BURST = 10, 50
KEEPALIVES = protocol.KEEPALIVE * 2  # in one read


def test_a_user_beyond_the_packet_rate_is_disconnected_and_gets_no_new_burst() -> None:
    world = World(packet_rate=PacketRate(RATE, BURST))
    ada = world.login()
    for number in range(BURST):  # the login does not count
        world.sockets.feed(ada, protocol.encode(protocol.keepalive(number)))
    assert not world.is_disconnected(ada)
    world.sockets.feed(ada, protocol.encode(protocol.keepalive(99)))
    *answers, goodbye = world.sockets.answers(ada)
    assert {each.kind for each in answers} == {Kind.OK}
    assert (goodbye.kind, goodbye.payload["code"]) == (Kind.GOODBYE, Code.RATE_LIMITED)
    assert goodbye.payload["reconnect"] is True
    assert goodbye.payload["retry_after"] >= 1
    assert world.engine.statistics().packet_floods == 1
    assert world.engine.statistics().refused == {"rate_limited": 1}
    back = world.login()
    world.sockets.feed(back, KEEPALIVES)
    assert world.is_disconnected(back)
    world.now += 2 * BURST / RATE
    forgiven = world.login()
    world.sockets.feed(forgiven, KEEPALIVES * (BURST // 2 - 1))
    assert not world.is_disconnected(forgiven)
    world.pass_time(2 * BURST / RATE)
    assert world.engine.statistics().packet_buckets_kept == 0


def test_keepalives_that_are_read_one_by_one_are_counted() -> None:
    world = World(packet_rate=PacketRate(RATE, BURST))
    ada, bob = world.login(), world.login("bob")
    for _ in range(BURST + 1):
        assert not world.is_disconnected(ada)
        world.now += 0.001
        world.beat(ada)
    goodbye = world.sockets.answers(ada)[-1].payload
    assert (goodbye["code"], goodbye["reconnect"]) == (Code.RATE_LIMITED, True)
    assert goodbye["retry_after"] >= 1
    statistics = world.engine.statistics()
    assert (statistics.packet_floods, statistics.refused) == (1, {"rate_limited": 1})
    assert world.history()[-1][0] is Op.LOGIN, "it may return within its grace"
    world.beat(bob)
    assert not world.is_disconnected(bob)


def test_keepalives_at_usual_intervals_are_not_counted() -> None:
    world = World(packet_rate=PacketRate(1, 1))
    ada = world.login()
    for _ in range(20):
        world.now += 1.0
        world.beat(ada)
    assert not world.is_disconnected(ada)
    assert world.engine.statistics().packet_buckets_kept == 0


def test_bytes_that_complete_no_packet_are_counted_too() -> None:
    """Each read costs the server as much as a packet, even if it has few bytes."""
    world = World(packet_rate=PacketRate(RATE, BURST))
    ada = world.login()
    packet = protocol.encode(protocol.message("bob", "x" * 2 * BURST))
    for number, byte in enumerate(packet[: BURST + 2]):
        assert world.is_disconnected(ada) is (number > BURST)
        world.sockets.feed(ada, bytes([byte]))
    assert world.engine.statistics().refused == {"rate_limited": 1}
