"""How long a connection waits for its turn, by what it sends."""

import trio

import protocol
from presence.transports.connections import ATTENTIVE, CALM_BEATS, PATIENT, PROMPT
from presence.transports.epoll import EpollTransport
from protocol import Code
from tests.transports.harness import Client, Harness, serving

WINDOW_S = 0.2


def pace_of(server: Harness, uid: str) -> int:
    transport = server.transport
    assert isinstance(transport, EpollTransport)
    fd: int = server.session(uid).handle
    return transport._connections.pace[fd]


async def logged_in(server: Harness, uid: str = "ada") -> Client:
    client = await server.connect()
    await client.login(uid)
    return client


async def plain_beats(server: Harness, client: Client, count: int) -> None:
    """Send plain keepalives, each of them read by itself."""
    for _ in range(count):
        seen = server.session("ada").last_seen
        await client.stream.send_all(protocol.KEEPALIVE)
        while server.session("ada").last_seen == seen:  # noqa: ASYNC110 - a test may poll
            await trio.sleep(0.002)


async def test_whoever_logs_in_is_watched_with_patience() -> None:
    async with serving("epoll", window_s=WINDOW_S) as server:
        await logged_in(server)
        assert pace_of(server, "ada") == PATIENT


async def test_who_calms_down_is_watched_with_more_patience_step_by_step() -> None:
    async with serving("epoll", window_s=0.03) as server:
        client = await logged_in(server)
        await client.send(protocol.message("bob", "hello", id=1))
        await client.receive()
        for _ in range(CALM_BEATS - 1):
            await client.beat()
        assert pace_of(server, "ada") == ATTENTIVE
        await client.beat()
        assert pace_of(server, "ada") == PROMPT
        await plain_beats(server, client, CALM_BEATS - 1)
        await client.beat()  # asks for an answer, and so for more of the same
        await plain_beats(server, client, CALM_BEATS - 1)
        assert pace_of(server, "ada") == PROMPT
        await plain_beats(server, client, 1)
        assert pace_of(server, "ada") == PATIENT


async def test_a_change_of_pace_loses_no_packet() -> None:
    async with serving("epoll", window_s=0.01) as server:
        client = await logged_in(server)
        answers = 0
        for number in range(200):
            await client.stream.send_all(protocol.KEEPALIVE)
            if number % 10 < 2:
                await client.send(protocol.keepalive(number))
                answers += 1
            if number % 50 == 0:
                await client.send(protocol.message("bob", "hello", id=1000 + number))
                answers += 1
            await trio.sleep(0.002)
        ids = [packet.id for _ in range(answers) if (packet := await client.receive()) is not None]
        assert len(set(ids)) == answers

        def packets() -> int:
            statistics = server.core.statistics()
            return statistics.frames + statistics.beats

        await server.until(lambda: packets() >= 1 + 200 + answers)
        assert packets() == 1 + 200 + answers


async def test_without_deadlines_nobody_is_woken() -> None:
    async with serving("epoll") as server:
        await logged_in(server)
        transport = server.transport
        assert isinstance(transport, EpollTransport)
        await server.until(lambda: not transport._connections.deadlines)
        await trio.sleep(0.25)
        assert not transport._connections.deadlines.came.is_set()
        guest = await server.connect()
        await guest.stream.send_all(b"\0")
        await server.until(transport._connections.deadlines.came.is_set)


async def test_a_crowd_that_ends_is_told_of_before_it_is_told() -> None:
    async with serving("epoll", idle_timeout=0.5) as server:
        clients = [await logged_in(server, f"user-{number}") for number in range(300)]
        await server.until(lambda: len(server.ends()) == 300)
        assert server.transport.statistics().closed < 300
        for client in clients:
            (goodbye,) = await client.rest()
            assert goodbye.payload["code"] == Code.IDLE_TIMEOUT
            client.close()
        await server.until(lambda: server.transport.statistics().connections == 0)
