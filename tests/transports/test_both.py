"""What holds of every transport, over real TCP: the epoll transport, with TLS or without, and streams."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.lowlevel

import protocol
from presence.transports import connections, stream
from presence.transports.limits import Limits
from protocol import TABLE, Answer, Code, Kind, Other, State
from tests.cells import AT_TRANSPORT, Cell, brief, frames
from tests.transports.harness import PATIENCE_S, Client, Harness, TransportKind, every_kind, serving


@asynccontextmanager
async def logged_in(
    kind: TransportKind, limits: Limits | None = None
) -> AsyncIterator[tuple[Harness, Client]]:
    async with serving(kind, limits) as server:
        client = await server.connect()
        assert (await client.login("ada")).kind == Kind.OK
        yield server, client


def login_limit(kind: TransportKind) -> float:
    """Return a short time for a login, in seconds; with TLS there is a handshake to be made in it."""
    return 1.5 if kind == "tls" else 0.25


@every_kind
@pytest.mark.parametrize("cell", AT_TRANSPORT, ids=lambda cell: f"{cell[0].value}-{cell[1].name}".lower())
async def test_a_cell_of_the_table(kind: TransportKind, cell: Cell) -> None:
    if kind != "tls" or cell[1] is not Other.LOGIN_TIMEOUT:  # tests/system/transports/test_both.py has these
        await try_cell(kind, cell)


async def try_cell(kind: TransportKind, cell: Cell) -> None:
    """Bring a connection into the state, let happen what triggers, and see the reaction of the table."""
    state, trigger = cell
    reaction = TABLE[cell]
    waits = trigger is Other.LOGIN_TIMEOUT
    limit = login_limit(kind) if waits else 30.0
    async with serving(kind, Limits(login_timeout=limit)) as server:
        client = await server.connect()
        if state is not State.CONNECTED:
            await client.login("ada")
        if state is State.CLOSING:
            await client.stream.send_all(b"\0\0\0\0")
            goodbye = await client.receive()
            assert goodbye is not None
            assert goodbye.kind == Kind.GOODBYE
        for frame in frames(trigger):
            await client.stream.send_all(frame)
        if waits:
            await trio.sleep(2 * limit)
        if reaction.then is State.LOGGED_IN:
            await client.beat()
        else:
            expected = [(Kind.ERROR, None, reaction.code)] if reaction.answer is Answer.ERROR else []
            assert [brief(each) for each in await client.rest()] == expected


@every_kind
async def test_login_beats_and_logout(kind: TransportKind) -> None:
    async with logged_in(kind) as (server, client):
        for _ in range(3):
            await client.stream.send_all(protocol.KEEPALIVE)
            await client.beat()
        await client.send(protocol.logout(id=9))
        assert [brief(each) for each in await client.rest()] == [(Kind.OK, 9, None)]
        assert server.story() == [("login", "ada", "login"), ("end", "ada", "logout")]


@every_kind
async def test_login_message_and_logout_in_one_segment(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.connect()
        await client.send(protocol.login("ada", id=1), protocol.message("bob", b"x" * 10_000, id=2))
        await client.send(protocol.logout(id=3))
        answers = [brief(each) for each in await client.rest()]
        assert answers == [(Kind.OK, 1, None), (Kind.ERROR, 2, Code.UNSUPPORTED), (Kind.OK, 3, None)]


@every_kind
async def test_a_frame_in_many_pieces(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.connect()
        data = protocol.encode(protocol.login("ada", id=1)) + protocol.encode(
            protocol.message("bob", "x" * 50, id=2)
        )
        for number in range(len(data)):
            await client.stream.send_all(data[number : number + 1])
            await trio.lowlevel.checkpoint()
        with trio.fail_after(5):
            answers = [await client.receive(), await client.receive()]
        assert [each and each.kind for each in answers] == [Kind.OK, Kind.ERROR]


@every_kind
async def test_a_half_close_with_answers_pending(kind: TransportKind) -> None:
    async with logged_in(kind) as (server, client):
        await client.send(*(protocol.keepalive(number) for number in range(2000)))
        await client.tcp.send_eof()
        assert [each.id for each in await client.rest()] == list(range(2000))
        assert server.session("ada").link is None, "lost, with its grace"


@every_kind
async def test_a_reset_has_its_grace(kind: TransportKind) -> None:
    async with serving(kind, idle_timeout=2.0, grace=0.2) as server:
        client = await server.connect()
        await client.login("ada")
        client.reset()
        await server.until(server.ends)
        assert server.story()[1:] == [("end", "ada", "closed")]
        assert server.transport.statistics().connections == 0


@every_kind
async def test_a_reset_before_the_login_is_no_login_timeout(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.connect()
        await server.until(lambda: server.transport.statistics().connections == 1)
        client.reset()
        await server.until(lambda: server.transport.statistics().connections == 0)
        assert server.transport.statistics().login_timeouts == 0
        assert server.core.statistics().refused == {}


@every_kind
async def test_silence_ends_in_time(kind: TransportKind) -> None:
    async with serving(kind, idle_timeout=0.6) as server:
        client = await server.connect()
        began = trio.current_time()
        await client.login("ada")
        logged_in_at = trio.current_time()
        assert [brief(each) for each in await client.rest()] == [(Kind.GOODBYE, None, Code.IDLE_TIMEOUT)]
        (end,) = server.ends()
        print(f"test_silence_ends_in_time[{kind}]: {end.at - began:.3f} s after the login, T = 0.6 s")
        assert end.at - began >= 0.6
        assert end.at - logged_in_at < 0.6 + 0.06 + 5.0, "a tick, and what a shared machine takes"


@every_kind
async def test_a_frame_that_trickles_in_is_no_activity(kind: TransportKind) -> None:
    async with serving(kind, idle_timeout=0.6) as server:
        client = await server.connect()
        await client.login("ada")
        frame = protocol.encode(protocol.message("bob", "x" * 200))
        with trio.move_on_after(3.0):
            for number in range(len(frame)):
                if server.ends():
                    break
                await client.stream.send_all(frame[number : number + 1])
                await trio.sleep(0.05)
        assert server.story()[1:] == [("end", "ada", "idle_timeout")]


@every_kind
@pytest.mark.parametrize("sends", [b"", b"\0"], ids=["silent", "slow"])
async def test_without_a_login_the_time_is_up(kind: TransportKind, sends: bytes) -> None:
    limit = login_limit(kind)
    async with serving(kind, Limits(login_timeout=limit)) as server:
        began = trio.current_time()
        client = await server.connect()
        frame = protocol.encode(protocol.login("a" * 100))

        async def trickle() -> None:
            for number in range(len(frame)):
                await client.stream.send_all(frame[number : number + 1])
                await trio.sleep(0.05)

        async with trio.open_nursery() as nursery:
            if sends:
                nursery.start_soon(trickle)
            answers = await client.rest()
            took = trio.current_time() - began
            nursery.cancel_scope.cancel()
        print(f"test_without_a_login_the_time_is_up[{kind}]: closed after {took:.2f} s of {limit} s")
        assert [brief(each) for each in answers] == [(Kind.ERROR, None, Code.LOGIN_TIMEOUT)]
        assert limit <= took <= limit + 5.0, "what a shared machine takes"
        assert server.transport.statistics().login_timeouts == 1


@every_kind
async def test_a_displaced_connection_is_told(kind: TransportKind) -> None:
    async with logged_in(kind) as (server, old):
        new = await server.connect()
        await new.login("ada")
        assert [brief(each) for each in await old.rest()] == [(Kind.GOODBYE, None, Code.REPLACED)]
        await old.stream.aclose()
        await new.beat()
        assert server.story() == [("login", "ada", "login")] * 2


@every_kind
async def test_the_core_can_hang_up(kind: TransportKind) -> None:
    async with logged_in(kind) as (server, client):
        farewell = protocol.encode(protocol.goodbye(Code.SERVER_DRAIN, retry_after=1.5))
        server.core.endings.farewell([server.session("ada")], lambda: farewell)
        (goodbye,) = await client.rest()
        assert goodbye.payload["retry_after"] == 1.5
        await client.stream.aclose()
        await server.until(lambda: server.transport.statistics().connections == 0)
        assert len(server.registry) == 1, "hung up, and not ended"


@every_kind
async def test_a_hung_up_client_that_keeps_talking_is_cut_off(
    kind: TransportKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    for transport in (connections, stream):
        monkeypatch.setattr(transport, "DRAIN_S", 10 * PATIENCE_S)  # what he sends is too much by then
    async with serving(kind) as server:
        client = await server.connect()
        await client.stream.send_all(protocol.KEEPALIVE)
        with trio.fail_after(PATIENCE_S), suppress(trio.BrokenResourceError):
            while True:
                await client.stream.send_all(bytes(8192))
        await server.until(lambda: server.transport.statistics().connections == 0)
