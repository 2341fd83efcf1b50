"""Floods of packets: one user's are bounded, and nobody else's."""

import protocol
from presence.admission import PacketRate
from protocol import Code, Kind
from tests.worlds import World

RATE, BURST = 10, 50
KEEPALIVES = protocol.KEEPALIVE * 2  # together: one that comes alone is not for the core to count


def world() -> World:
    return World(packet_rate=PacketRate(RATE, BURST))


def test_whoever_sends_more_packets_than_he_may_is_told_and_closed() -> None:
    there = world()
    ada = there.login()
    there.sockets.answers(ada)
    for number in range(BURST - 1):
        there.sockets.feed(ada, protocol.encode(protocol.keepalive(number)))
    assert not there.is_hung_up(ada)
    there.sockets.feed(ada, protocol.encode(protocol.keepalive(99)))
    *answers, goodbye = there.sockets.answers(ada)
    assert {each.kind for each in answers} == {Kind.OK}
    assert (goodbye.kind, goodbye.payload["code"]) == (Kind.GOODBYE, Code.RATE_LIMITED)
    assert goodbye.payload["reconnect"] is True
    assert goodbye.payload["retry_after"] >= 1
    assert there.is_hung_up(ada)
    assert there.core.statistics().packet_floods == 1
    assert there.core.statistics().refused == {"rate_limited": 1}


def test_who_is_closed_for_a_flood_and_comes_back_has_no_fresh_burst() -> None:
    there = world()
    there.sockets.feed(there.login(), KEEPALIVES * BURST)
    back = there.login()
    for _ in range(BURST // 2):
        if not there.is_hung_up(back):
            there.sockets.feed(back, KEEPALIVES)
    assert there.is_hung_up(back)
    there.now += 2 * BURST / RATE
    forgiven = there.login()
    for _ in range(BURST // 2 - 1):
        there.sockets.feed(forgiven, KEEPALIVES)
    assert not there.is_hung_up(forgiven)


def test_the_table_is_empty_again_a_moment_after_the_packets() -> None:
    there = world()
    handles = [there.login(f"user-{number}") for number in range(500)]
    for handle in handles:
        there.sockets.feed(handle, KEEPALIVES)
    assert there.core.statistics().packet_buckets_kept == 500
    there.pass_time(2.0)
    assert there.core.statistics().packet_buckets_kept == 0


def test_bytes_that_complete_no_packet_are_counted_too() -> None:
    """Each read costs the server as much as a packet, however little it brings."""
    there = world()
    ada = there.login()
    packet = protocol.encode(protocol.message("bob", "x" * 2 * BURST))
    for byte in packet[: BURST - 1]:
        there.sockets.feed(ada, bytes([byte]))
    assert not there.is_hung_up(ada)
    for byte in packet[BURST - 1 :]:
        if not there.is_hung_up(ada):
            there.sockets.feed(ada, bytes([byte]))
    assert there.is_hung_up(ada)
    assert there.core.statistics().refused == {"rate_limited": 1}
