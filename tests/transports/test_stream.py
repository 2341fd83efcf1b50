"""The stream transport over memory streams, with a clock that jumps: the same facts at their real length.

Each test names the clock itself, for pytest-trio takes it from nowhere else."""

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

import protocol
from presence.transports.limits import DRAIN_S, Limits
from protocol import Code, Kind, Packet
from tests.cells import brief
from tests.transports.harness import Client, Harness, serving

T = 30.0
SLOT = T / 20  # half of the harness's tick


@pytest.fixture
async def server() -> AsyncIterator[Harness]:
    async with serving("stream", idle_timeout=T, listen=False) as harness:
        yield harness


@pytest.fixture
async def client(server: Harness) -> Client:
    client = await server.connect_in_memory()
    assert (await client.login("ada")).kind == Kind.OK
    return client


async def test_silence_ends_at_t(autojump_clock: MockClock, server: Harness, client: Client) -> None:
    began = trio.current_time()
    assert [brief(each) for each in await rest(client)] == [(Kind.GOODBYE, None, Code.IDLE_TIMEOUT)]
    (end,) = server.ends()
    assert T <= end.at - began <= T + SLOT


async def rest(client: Client) -> list[Packet]:
    """Return what comes until the end, however long it takes."""
    packets = []
    while (packet := await client.receive()) is not None:
        packets.append(packet)
    return packets


async def test_beats_keep_a_session_for_hours(
    autojump_clock: MockClock, server: Harness, client: Client
) -> None:
    for _ in range(500):
        await trio.sleep(T - 1)
        await client.stream.send_all(protocol.KEEPALIVE)
    assert server.story() == [("login", "ada", "login")]


async def test_a_beat_that_waits_when_the_tick_comes_wins(
    autojump_clock: MockClock, server: Harness, client: Client
) -> None:
    await trio.sleep(T - 0.001)
    await client.stream.send_all(protocol.KEEPALIVE)
    autojump_clock.jump(2 * SLOT)  # reader and ticker wake up in the same pass, in any order
    await trio.sleep(SLOT)
    assert server.ends() == []
    assert server.session("ada").last_seen > T


async def test_a_login_in_time_is_a_login(autojump_clock: MockClock, server: Harness) -> None:
    client = await server.connect_in_memory()
    await trio.sleep(4.999)
    assert (await client.login("ada")).kind == Kind.OK
    await trio.sleep(10)
    await client.beat()


async def test_a_login_that_is_read_in_the_turn_in_which_its_time_ends_stays_served(
    autojump_clock: MockClock, server: Harness
) -> None:
    client = await server.connect_in_memory()
    await trio.sleep(1.0)
    await client.send(protocol.login("ada"))
    autojump_clock.jump(4.5)  # the reader has been woken, and its time ends before it runs
    assert (await client.receive() or Packet(0)).kind == Kind.OK
    for _ in range(3):
        await trio.sleep(T - 1)
        await client.beat()
    assert server.ends() == []


@pytest.mark.parametrize("sends", [b"", b"\0"], ids=["silent", "slow"])
async def test_the_login_timeout_is_five_seconds(
    autojump_clock: MockClock, server: Harness, sends: bytes
) -> None:
    client = await server.connect_in_memory()
    began = trio.current_time()
    frame = protocol.encode(protocol.login("ada" * 30))

    async def trickle() -> None:
        for number in range(len(frame)):
            await client.stream.send_all(frame[number : number + 1])
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        if sends:
            nursery.start_soon(trickle)
        refusal = await client.receive()
        took = trio.current_time() - began
        nursery.cancel_scope.cancel()
    assert refusal is not None
    assert brief(refusal) == (Kind.ERROR, None, Code.LOGIN_TIMEOUT)
    assert took == pytest.approx(5.0)


async def test_a_hung_up_connection_drains_for_a_bounded_time(
    autojump_clock: MockClock, server: Harness, client: Client
) -> None:
    await client.stream.send_all(b"\0\0\0\0")
    began = trio.current_time()
    await server.until(lambda: server.transport.statistics().connections == 0)
    assert trio.current_time() - began == pytest.approx(DRAIN_S, abs=0.05)


async def test_a_client_that_closes_is_offline_after_the_grace(
    autojump_clock: MockClock, server: Harness, client: Client
) -> None:
    began = trio.current_time()
    await client.stream.aclose()
    await trio.sleep(5.0 + SLOT + 0.1)
    (end,) = server.ends()
    assert end.code == Code.CLOSED
    assert 5.0 <= end.at - began <= 5.0 + SLOT


async def test_a_return_within_the_grace_is_no_end(
    autojump_clock: MockClock, server: Harness, client: Client
) -> None:
    await client.stream.aclose()
    await trio.sleep(2.0)
    again = await server.connect_in_memory()
    await again.login("ada")
    await trio.sleep(T - 1)
    assert server.story() == [("login", "ada", "login")] * 2


async def test_a_slow_reader_is_cut_off_after_ten_seconds(autojump_clock: MockClock) -> None:
    limits = Limits(unsent_timeout=10.0)
    async with serving("stream", limits, listen=False) as server:
        ours, theirs = trio.testing.lockstep_stream_pair()
        server.nursery.start_soon(server.transport.serve, theirs)  # type: ignore[union-attr]  # a stream transport
        client = Client(ours)
        await client.login("ada")
        began = trio.current_time()
        await client.send(protocol.keepalive(1))
        await server.until(lambda: server.transport.statistics().slow_readers, 20)
        assert trio.current_time() - began == pytest.approx(10.0, abs=0.1)
