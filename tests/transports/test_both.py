"""What holds of every transport, over real TCP: the epoll transport and the stream transport alike."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import structlog
import trio
import trio.lowlevel

import protocol
from presence.transports.epoll import EpollTransport
from presence.transports.limits import Limits
from protocol import TABLE, Answer, Code, Kind, Other, Packet, State
from tests.cells import AT_TRANSPORT, Cell, brief, frames
from tests.transports.harness import Client, Harness, TransportKind, serving

KINDS: list[TransportKind] = ["epoll", "stream"]
both = pytest.mark.parametrize("kind", KINDS)
BAD_FIRST_FRAME = protocol.KEEPALIVE


@asynccontextmanager
async def logged_in(
    kind: TransportKind, limits: Limits | None = None
) -> AsyncIterator[tuple[Harness, Client]]:
    async with serving(kind, limits) as server:
        client = await server.connect()
        assert (await client.login("ada")).kind == Kind.OK
        yield server, client


@both
@pytest.mark.parametrize("cell", AT_TRANSPORT, ids=lambda cell: f"{cell[0].value}-{cell[1].name}".lower())
async def test_a_cell_of_the_table(kind: TransportKind, cell: Cell) -> None:
    state, trigger = cell
    reaction = TABLE[cell]
    waits = trigger is Other.LOGIN_TIMEOUT
    async with serving(kind, Limits(login_timeout=0.25 if waits else 5.0)) as server:
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
            await trio.sleep(0.5)
        if reaction.then is State.LOGGED_IN:
            await client.beat()
        else:
            expected = [(Kind.ERROR, None, reaction.code)] if reaction.answer is Answer.ERROR else []
            assert [brief(each) for each in await client.rest()] == expected


@both
async def test_login_beats_and_logout(kind: TransportKind) -> None:
    async with logged_in(kind) as (server, client):
        for _ in range(3):
            await client.stream.send_all(protocol.KEEPALIVE)
            await client.beat()
        await client.send(protocol.logout(id=9))
        assert [brief(each) for each in await client.rest()] == [(Kind.OK, 9, None)]
        assert server.story() == [("login", "ada", "login"), ("end", "ada", "logout")]


@both
async def test_login_message_and_logout_in_one_segment(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.connect()
        await client.send(protocol.login("ada", id=1), protocol.message("bob", b"x" * 10_000, id=2))
        await client.send(protocol.logout(id=3))
        answers = [brief(each) for each in await client.rest()]
        assert answers == [(Kind.OK, 1, None), (Kind.ERROR, 2, Code.UNSUPPORTED), (Kind.OK, 3, None)]


@both
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


@both
async def test_a_half_close_with_answers_pending(kind: TransportKind) -> None:
    async with logged_in(kind) as (server, client):
        assert isinstance(client.stream, trio.SocketStream)
        await client.send(*(protocol.keepalive(number) for number in range(2000)))
        await client.stream.send_eof()
        assert [each.id for each in await client.rest()] == list(range(2000))
        assert server.session("ada").link is None, "lost, with its grace"


@both
async def test_a_reset_has_its_grace(kind: TransportKind) -> None:
    async with serving(kind, idle_timeout=2.0, grace=0.2) as server:
        client = await server.connect()
        await client.login("ada")
        client.reset()
        await server.until(server.ends)
        assert server.story()[1:] == [("end", "ada", "closed")]
        assert server.transport.statistics().connections == 0


@both
async def test_a_reset_before_the_login_is_no_login_timeout(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.connect()
        await server.until(lambda: server.transport.statistics().connections == 1)
        client.reset()
        await server.until(lambda: server.transport.statistics().connections == 0)
        assert server.transport.statistics().login_timeouts == 0
        assert server.core.statistics().refused == {}


@both
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
        assert end.at - logged_in_at < 0.6 + 0.06 + 0.5, "a tick, and what a shared machine takes"


@both
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


@both
@pytest.mark.parametrize("sends", [b"", b"\0"], ids=["silent", "slow"])
async def test_without_a_login_the_time_is_up(kind: TransportKind, sends: bytes) -> None:
    limit = 0.5
    async with serving(kind, Limits(login_timeout=limit)) as server:
        client = await server.connect()
        began = trio.current_time()
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
        assert limit <= took <= limit + 0.5
        assert server.transport.statistics().login_timeouts == 1


async def refusals_read(server: Harness, times: int) -> int:
    """Connect, send what is refused and more of it behind; return how often the refusal was read."""
    read = 0
    for _ in range(times):
        client = await server.connect()
        try:
            await client.stream.send_all(BAD_FIRST_FRAME + b"x" * 20_000)  # more than one read takes
            await client.stream.send_all(b"y" * 20_000)
            answers = [brief(each) for each in await client.rest()]
            read += answers == [(Kind.ERROR, None, Code.NOT_LOGGED_IN)]
        except trio.BrokenResourceError:
            pass
        await client.stream.aclose()
    return read


@both
async def test_a_refusal_is_read_although_input_was_in_flight(kind: TransportKind) -> None:
    times = 1000
    async with serving(kind) as server:
        read = await refusals_read(server, times)
    print(f"test_a_refusal_is_read_although_input_was_in_flight[{kind}]: {read / times:.2%} of {times}")
    assert read >= 0.999 * times


async def test_a_close_without_draining_would_lose_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    def close_at_once(transport: EpollTransport, fd: int, closing: object) -> None:
        transport._close(fd)

    monkeypatch.setattr(EpollTransport, "_shut", close_at_once)
    async with serving("epoll") as server:
        assert await refusals_read(server, 100) < 99


@both
async def test_a_connection_too_many_is_told_when_to_return(kind: TransportKind) -> None:
    async with serving(kind, Limits(max_connections=1)) as server:
        first = await server.connect()
        await first.login("ada")
        second = await server.connect()
        await second.send(protocol.login("bob"))
        (refusal,) = await second.rest()
        assert (refusal.kind, refusal.payload["code"]) == (Kind.ERROR, Code.BUSY)
        assert refusal.payload["retry_after"] >= 1
        await first.beat()
        assert server.core.statistics().refused == {"busy": 1}


@both
async def test_a_displaced_connection_is_told(kind: TransportKind) -> None:
    async with logged_in(kind) as (server, old):
        new = await server.connect()
        await new.login("ada")
        assert [brief(each) for each in await old.rest()] == [(Kind.GOODBYE, None, Code.REPLACED)]
        await old.stream.aclose()
        await new.beat()
        assert server.story() == [("login", "ada", "login")] * 2


@both
async def test_the_core_can_hang_up(kind: TransportKind) -> None:
    async with logged_in(kind) as (server, client):
        farewell = protocol.encode(protocol.goodbye(Code.SERVER_DRAIN, retry_after=1.5))
        server.core.farewell([server.session("ada")], lambda: farewell)
        (goodbye,) = await client.rest()
        assert goodbye.payload["retry_after"] == 1.5
        await client.stream.aclose()
        await server.until(lambda: server.transport.statistics().connections == 0)
        assert len(server.registry) == 1, "hung up, and not ended"


@both
@pytest.mark.parametrize("when", ["login", "session"])
async def test_a_handler_that_raises_ends_its_connection_only(
    kind: TransportKind, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(kind) as server:
        others = [await server.connect() for _ in range(20)]
        for number, other in enumerate(others):
            await other.login(f"user-{number}")
        victim = await server.connect()
        if when == "login":
            bad = protocol.login("ada", idle_timeout=666)
        else:
            bad = protocol.message("bob", "boo")
            await victim.login("ada")
            received = server.core.received

            def poisoned(peer: object, data: bytes) -> object:
                if b"boo" in data:
                    raise ZeroDivisionError
                return received(peer, data)  # type: ignore[arg-type]  # handed on as it came

            monkeypatch.setattr(server.core, "received", poisoned)
        with structlog.testing.capture_logs() as logs:
            await victim.send(bad)
            assert [brief(each) for each in await victim.rest()] == [(Kind.GOODBYE, None, Code.SERVER_ERROR)]
        assert [each["event"] for each in logs] == ["connection_failed"]
        assert server.transport.statistics().failures == 1
        for other in others:
            await other.beat()
        lost = sum(1 for number in range(20) if server.registry.get(f"user-{number}") is None)
        print(f"test_a_handler_that_raises_ends_its_connection_only[{kind}-{when}]: others lost {lost}")
        assert lost == 0


# Clients that do not read


@both
async def test_a_slow_reader_is_cut_off_at_the_byte_bound(kind: TransportKind) -> None:
    limits = Limits(unsent_bytes=8192, unsent_timeout=30.0)
    async with serving(kind, limits, send_buffer=4096) as server:
        client = await server.connect(receive_buffer=4096)
        await client.login("ada")

        async def ask_without_reading() -> None:
            while True:
                await client.send(*(Packet(9, number) for number in range(20)))
                assert queued(server) <= limits.unsent_bytes
                await trio.lowlevel.checkpoint()

        with pytest.raises(trio.BrokenResourceError), trio.fail_after(10):
            await ask_without_reading()
        assert server.transport.statistics().slow_readers == 1
        assert server.core.sessions.get("ada") is not None, "in its grace: it may come back"


def queued(server: Harness) -> int:
    """Return how many bytes wait for the one client."""
    session = server.registry.get("ada")
    if session is None or session.link is None:
        return 0
    unsent = getattr(server.transport, "_unsent", None)
    waiting = unsent.get(session.handle, b"") if unsent is not None else session.handle.unsent
    return len(waiting)


@both
async def test_a_slow_reader_is_cut_off_at_the_time_bound(kind: TransportKind) -> None:
    limits = Limits(unsent_bytes=1_000_000, unsent_timeout=0.3)
    async with serving(kind, limits, send_buffer=4096) as server:
        client = await server.connect(receive_buffer=4096)
        await client.login("ada")
        await client.send(*(Packet(9, number) for number in range(1000)))
        await server.until(lambda: queued(server))
        began = trio.current_time()
        await server.until(lambda: server.transport.statistics().slow_readers)
        took = trio.current_time() - began
        print(f"test_a_slow_reader_is_cut_off_at_the_time_bound[{kind}]: after {took:.2f} s of 0.3 s")
        assert took <= 0.3 + 1.0


@both
async def test_a_reader_that_is_slow_for_a_while_gets_everything(kind: TransportKind) -> None:
    async with serving(kind, Limits(unsent_bytes=1_000_000), send_buffer=4096) as server:
        client = await server.connect(receive_buffer=4096)
        await client.login("ada")
        await client.send(*(Packet(9, number) for number in range(1000)))
        await server.until(lambda: queued(server))
        with trio.fail_after(10):
            assert [(await client.receive() or Packet(0)).id for _ in range(1000)] == list(range(1000))
        await server.until(lambda: queued(server) == 0)
        await client.beat()
