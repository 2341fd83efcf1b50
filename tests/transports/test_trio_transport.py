"""The stream transport over memory streams, with a clock that jumps: the same facts at their real times.

Each test requests the clock itself, because pytest-trio finds it only there.
"""

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from presence import protocol
from presence.protocol import Kind, Packet
from presence.transports.limits import DRAIN_TIMEOUT_S
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


async def test_a_keepalive_that_is_unread_at_the_tick_wins(
    autojump_clock: MockClock, server: Harness, client: Client
) -> None:
    await trio.sleep(T - 0.001)
    await client.stream.send_all(protocol.KEEPALIVE)
    autojump_clock.jump(2 * SLOT)  # reader and ticker wake up in the same pass, in any order
    await trio.sleep(SLOT)
    assert server.ends() == []
    assert server.session("ada").last_seen > T


async def test_a_login_read_in_the_turn_of_its_timeout_is_served(
    autojump_clock: MockClock, server: Harness
) -> None:
    client = await server.connect_in_memory()
    await trio.sleep(1.0)
    await client.send(protocol.login("ada"))
    autojump_clock.jump(4.5)  # the reader has been woken, and its time-out fires before it runs
    assert (await client.receive() or Packet(0)).kind == Kind.OK
    for _ in range(3):
        await trio.sleep(T - 1)
        await client.beat()
    assert server.ends() == []


async def test_a_hung_up_connection_drains_for_a_bounded_time(
    autojump_clock: MockClock, server: Harness, client: Client
) -> None:
    await client.stream.send_all(b"\0\0\0\0")
    began = trio.current_time()
    await server.until(lambda: server.counted.connections == 0)
    assert trio.current_time() - began == pytest.approx(DRAIN_TIMEOUT_S, abs=0.05)
