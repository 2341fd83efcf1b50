"""What holds for every connection from login to end over any transport, and what is reported of it."""

import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
import structlog
import trio
import trio.lowlevel

from presence import protocol
from presence.common.clock import Clock
from presence.core.login_policy import ARRIVAL_ERROR_S
from presence.core.registry import Client, ConnectionInfo
from presence.core.server_protocol import Event, ReadOutcome, ServerProtocol
from presence.protocol import KEEPALIVE, TABLE, Code, ConnectionState, Kind, Other, ServerAnswer
from presence.transports import connections, sockets, trio_transport
from presence.transports.connection_states import Connection
from presence.transports.connections import Connections
from presence.transports.limits import MAX_PACKETS_PER_SLICE, Limits
from tests.support.state_table import AT_TRANSPORT, Cell, brief, frames
from tests.transports.harness import (
    FAILING_WISH_S,
    PATIENCE_S,
    Harness,
    TransportKind,
    all_four,
    every_kind,
    serving,
)

NAMES = {"epoll": "plain", "tls": "tls", "stream": "stream", "tls stream": "stream"}


def login_limit(kind: TransportKind) -> float:
    """Return a short time-out for a login, in seconds; with TLS it includes a handshake."""
    return 1.5 if kind.startswith("tls") else 0.25


@every_kind
@pytest.mark.parametrize("cell", AT_TRANSPORT, ids=lambda cell: f"{cell[0].value}-{cell[1].name}".lower())
async def test_a_cell_of_the_table(kind: TransportKind, cell: Cell) -> None:
    if (
        kind != "tls" or cell[1] is not Other.LOGIN_TIMEOUT
    ):  # those are in tests/system/transports/test_epoll.py
        await try_cell(kind, cell)


async def try_cell(kind: TransportKind, cell: Cell) -> None:
    """Bring a connection into the state, trigger the event, and check the reaction of the table."""
    state, trigger = cell
    reaction = TABLE[cell]
    waits = trigger is Other.LOGIN_TIMEOUT
    limit = login_limit(kind) if waits else 30.0
    async with serving(kind, Limits(login_timeout=limit)) as server:
        client = await server.connect()
        if state is not ConnectionState.CONNECTED:
            await client.login("ada")
        if state is ConnectionState.CLOSING:
            await client.stream.send_all(b"\0\0\0\0")
            goodbye = await client.receive()
            assert goodbye is not None
            assert goodbye.kind == Kind.GOODBYE
        for frame in frames(trigger):
            await client.stream.send_all(frame)
        if waits:
            await trio.sleep(2 * limit)
        if reaction.then is ConnectionState.LOGGED_IN:
            await client.beat()
        else:
            expected = [(Kind.ERROR, None, reaction.code)] if reaction.answer is ServerAnswer.ERROR else []
            assert [brief(each) for each in await client.rest()] == expected
        if state is ConnectionState.CONNECTED and waits:
            assert server.counted.login_timeouts == 1


@all_four
async def test_a_login_keepalives_and_a_logout(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.logged_in()
        expected = ConnectionInfo(NAMES[kind], "127.0.0.1", 0)
        handle = server.session("ada").handle
        await server.until(lambda: server.transport.connected(handle) == expected)
        for _ in range(3):
            await client.stream.send_all(KEEPALIVE)
            await client.beat()
        await client.send(protocol.logout(id=9))
        assert [brief(each) for each in await client.rest()] == [(Kind.OK, 9, None)]
        assert server.history() == [("login", "ada", "login"), ("end", "ada", "logout")]


@every_kind
@pytest.mark.parametrize("size", [1, 100_000], ids=["many pieces", "one segment"])
async def test_packets_cut_anywhere_are_answered_in_order(kind: TransportKind, size: int) -> None:
    packets = protocol.login("ada", id=1), protocol.message("bob", b"x" * 500, id=2), protocol.logout(id=3)
    data = b"".join(map(protocol.encode, packets))
    async with serving(kind) as server:
        client = await server.connect()
        for start in range(0, len(data), size):
            await client.stream.send_all(data[start : start + size])
            await trio.lowlevel.checkpoint()
        answers = [brief(each) for each in await client.rest()]
        assert answers == [(Kind.OK, 1, None), (Kind.ERROR, 2, Code.UNSUPPORTED), (Kind.OK, 3, None)]


@every_kind
async def test_a_half_close_with_pending_answers(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.logged_in()
        await client.send(*(protocol.keepalive(number) for number in range(2000)))
        await client.tcp.send_eof()
        assert [each.id for each in await client.rest()] == list(range(2000))
        assert server.session("ada").transport is None, "lost, within its grace"


@every_kind
async def test_a_reset_has_a_grace_period_and_is_no_login_timeout_before_the_login(
    kind: TransportKind,
) -> None:
    async with serving(kind, idle_timeout=2.0, grace=0.2) as server:
        client = await server.connect()
        await server.remain(1)
        client.reset()
        await server.remain(0)
        (await server.logged_in()).reset()
        await server.until(server.ends)
        assert server.history()[1:] == [("end", "ada", "closed")]
        assert (server.counted.connections, server.counted.login_timeouts) == (0, 0)
        assert server.engine.statistics().refused == {}


@every_kind
async def test_a_frame_that_trickles_in_is_no_activity(kind: TransportKind) -> None:
    async with serving(kind, idle_timeout=0.6) as server:
        began = server.clock.now()
        client = await server.logged_in()
        frame = protocol.encode(protocol.message("bob", "x" * 200))
        with trio.move_on_after(3.0):
            for number in range(len(frame)):
                if server.ends():
                    break
                await client.stream.send_all(frame[number : number + 1])
                await trio.sleep(0.05)
        assert server.history()[1:] == [("end", "ada", "idle_timeout")]
        assert server.ends()[0].at - began >= 0.6
        assert [brief(each) for each in await client.rest()] == [(Kind.GOODBYE, None, Code.IDLE_TIMEOUT)]


@every_kind
async def test_a_login_that_trickles_in_gets_no_more_time(kind: TransportKind) -> None:
    limit = login_limit(kind)
    async with serving(kind, Limits(login_timeout=limit)) as server, trio.open_nursery() as nursery:
        began = trio.current_time()
        client = await server.connect()
        frame = protocol.encode(protocol.login("a" * 100))

        async def trickle() -> None:
            for number in range(len(frame)):
                await client.stream.send_all(frame[number : number + 1])
                await trio.sleep(0.05)

        nursery.start_soon(trickle)
        answers = await client.rest()
        took = trio.current_time() - began
        nursery.cancel_scope.cancel()
        assert [brief(each) for each in answers] == [(Kind.ERROR, None, Code.LOGIN_TIMEOUT)]
        assert limit <= took <= limit + 5.0, "the tolerance of a shared machine"
        assert server.counted.login_timeouts == 1


@every_kind
async def test_a_stall_of_the_process_makes_no_login_older(
    kind: TransportKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = sockets.receive_queue_age_s

    def after_a_pause(sock: socket.socket, now: float, clock: Clock) -> float:
        time.sleep(5 * ARRIVAL_ERROR_S)  # as if other processes had the CPU
        return ask(sock, now, clock)

    async with serving(kind) as server:
        old = await server.logged_in()
        await trio.sleep(2 * ARRIVAL_ERROR_S)
        monkeypatch.setattr(sockets, "receive_queue_age_s", after_a_pause)
        await server.logged_in()
        assert [brief(each) for each in await old.rest()] == [(Kind.GOODBYE, None, Code.REPLACED)]


@every_kind
async def test_the_engine_can_hang_up_and_a_displaced_client_gets_a_goodbye(kind: TransportKind) -> None:
    async with serving(kind) as server:
        old = await server.logged_in()
        await trio.sleep(2 * ARRIVAL_ERROR_S)  # otherwise the order might be uncertain
        new = await server.logged_in()
        assert [brief(each) for each in await old.rest()] == [(Kind.GOODBYE, None, Code.REPLACED)]
        await old.stream.aclose()
        await new.beat()
        assert server.history() == [("login", "ada", "login")] * 2
        farewell = protocol.encode(protocol.goodbye(Code.SERVER_DRAIN, retry_after=1.5))
        server.engine.terminator.disconnect_all([server.session("ada")], lambda: farewell)
        (goodbye,) = await new.rest()
        assert goodbye.payload["retry_after"] == 1.5
        await new.stream.aclose()
        await server.remain(0)
        assert len(server.registry) == 1, "hung up, but not ended"


@every_kind
async def test_a_hung_up_client_that_keeps_sending_is_cut_off(
    kind: TransportKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    for transport in (connections, trio_transport):
        monkeypatch.setattr(
            transport, "DRAIN_TIMEOUT_S", 10 * PATIENCE_S
        )  # by then the client has sent too much
    async with serving(kind) as server:
        client = await server.connect()
        await client.stream.send_all(KEEPALIVE)
        with trio.fail_after(PATIENCE_S), suppress(trio.BrokenResourceError):
            while True:
                await client.stream.send_all(bytes(8192))
        await server.remain()


@all_four
async def test_stopping_closes_the_listeners_and_keeps_connections(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.logged_in()
        await server.transport.stop_accepting()
        await trio.testing.wait_all_tasks_blocked(0.01)
        with pytest.raises(ConnectionRefusedError):
            await server.dial()
        await client.beat()


async def refusals_read(server: Harness, times: int) -> int:
    """Connect, send an invalid frame and more after it; return how often the refusal was read."""
    read = 0
    for _ in range(times):
        client = await server.connect()
        with suppress(trio.BrokenResourceError):
            await client.stream.send_all(KEEPALIVE + b"x" * 20_000)  # more than one read
            await client.stream.send_all(b"y" * 20_000)
            answers = [brief(each) for each in await client.rest()]
            read += answers == [(Kind.ERROR, None, Code.NOT_LOGGED_IN)]
        await client.stream.aclose()
    return read


@every_kind
async def test_a_refusal_is_read_despite_input_in_flight(kind: TransportKind) -> None:
    async with serving(kind) as server:
        assert await refusals_read(server, 60) == 60


async def test_a_refusal_over_tls_streams_is_read_despite_input_in_flight() -> None:
    async with serving("tls stream") as server:
        for _ in range(20):
            client = await server.connect()
            await client.stream.send_all(KEEPALIVE + b"x" * 20_000)
            await client.stream.send_all(b"y" * 20_000)
            refusal = await client.receive()  # a reset may follow: trio's TLS cannot close cleanly then
            assert refusal is not None
            assert refusal.payload["code"] == Code.NOT_LOGGED_IN


async def test_a_close_without_draining_would_lose_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    def close_immediately(connections: Connections, connection: Connection) -> None:
        connections.close(connection.fd)

    monkeypatch.setattr(Connections, "_half_close", close_immediately)
    async with serving("epoll") as server:
        assert await refusals_read(server, 100) < 99


@every_kind
@pytest.mark.parametrize("when", ["login", "session", "later slice"])
async def test_a_handler_that_raises_ends_its_connection_only(
    kind: TransportKind, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(kind) as server:
        others = [await server.logged_in(f"user-{number}") for number in range(20)]
        victim = await server.connect()
        if when == "login":
            bad = protocol.encode(protocol.login("ada", idle_timeout=FAILING_WISH_S))
        else:
            bad = protocol.encode(protocol.message("bob", "boo"))
            await victim.login("ada")
            receive, slices = ServerProtocol.receive, Counter[Client]()

            def poisoned(rules: ServerProtocol, outcome: ReadOutcome, most: int) -> Iterator[Event]:
                slices[outcome.client] += 1
                if b"boo" in outcome.client.unhandled or slices[outcome.client] > 1:
                    raise ZeroDivisionError
                return receive(rules, outcome, most)

            monkeypatch.setattr(ServerProtocol, "receive", poisoned)
        with structlog.testing.capture_logs() as logs:
            burst = KEEPALIVE * (3 * MAX_PACKETS_PER_SLICE)
            await victim.stream.send_all(burst if when == "later slice" else bad)
            assert [brief(each) for each in await victim.rest()] == [(Kind.GOODBYE, None, Code.SERVER_ERROR)]
        assert [each["event"] for each in logs] == ["connection failed"]
        assert server.counted.failures == 1
        assert server.engine.statistics().refused == {"server_error": 1}
        assert when == "login" or server.session("ada").transport is None, "within its grace"
        for other in others:
            await other.beat()


async def test_a_stream_other_than_tcp_has_no_address() -> None:
    async with serving("stream", listen=False) as server:
        client = await server.connect_in_memory()
        await client.login("ada")
        assert server.transport.connected(server.session("ada").handle).address == ""
