"""The trio client over memory streams and the server's own transport, in virtual time."""

import errno
from collections.abc import AsyncIterator

import pytest
import trio
from trio.abc import Stream
from trio.testing import MockClock

from presence import client as client_package
from presence import protocol
from presence.client import (
    Client,
    Connected,
    Delivered,
    Disconnected,
    EncodeError,
    Ended,
    PresenceChanged,
    PresenceError,
    Replaced,
    RequestTimeout,
    State,
    Unreachable,
    UserState,
    connect,
)
from presence.protocol import Code, Kind
from tests.client.machine_driver import login_ok
from tests.client.network import Network
from tests.client.scripted_server import ScriptedServer
from tests.transports.harness import Harness, serving

T = 30.0


@pytest.fixture
async def server() -> AsyncIterator[Harness]:
    async with serving("stream", idle_timeout=T, listen=False) as harness:
        yield harness


@pytest.fixture
def network(server: Harness) -> Network:
    return Network(server)


async def kinds(client: Client, count: int) -> list[str]:
    """Return the names of the next pushes' types."""
    return [type(await anext(client)).__name__ for _ in range(count)]


@pytest.mark.parametrize("by", ["exception", "cancellation"])
async def test_leaving_the_block_early_keeps_the_session_for_the_grace_period(
    autojump_clock: MockClock, server: Harness, network: Network, by: str
) -> None:
    async def live() -> None:
        async with connect("nowhere", 1, uid="ann", open_stream=network.open):
            if by == "exception":
                raise KeyError("mine")
            await trio.sleep_forever()

    with trio.move_on_after(10):
        with pytest.raises(KeyError if by == "exception" else trio.Cancelled):
            await live()
    assert server.ends() == []
    await trio.sleep(7)
    assert [Code(end.code) for end in server.ends()] == [Code.CLOSED]


async def test_no_task_is_left_behind(autojump_clock: MockClock, server: Harness, network: Network) -> None:
    async with connect("nowhere", 1, uid="ann", open_stream=network.open):
        pass
    await trio.sleep(5)
    before = trio.lowlevel.current_statistics().tasks_living
    for number in range(20):
        with trio.move_on_after(1):
            async with connect("nowhere", 1, uid="ann", open_stream=network.open):
                if number % 2:
                    await trio.sleep_forever()
    await trio.sleep(5)
    assert trio.lowlevel.current_statistics().tasks_living == before


async def test_a_broken_connection_is_replaced_within_the_grace_period(
    autojump_clock: MockClock, server: Harness, network: Network
) -> None:
    async with connect("nowhere", 1, uid="ann", open_stream=network.open) as client:
        await network.cut()
        assert await kinds(client, 3) == ["Connected", "Disconnected", "Connected"]
        await trio.sleep(60)
        assert {story[0] for story in server.history()} == {"login"}


async def test_a_peer_that_reads_nothing_does_not_stop_the_timers(autojump_clock: MockClock) -> None:
    async def open_stream() -> Stream:
        await trio.lowlevel.checkpoint()
        ours, theirs = trio.testing.lockstep_stream_pair()  # a sender waits until the other side reads
        streams.append(theirs)
        return ours

    streams: list[Stream] = []
    async with connect("nowhere", 1, uid="ann", open_stream=open_stream, wait=False) as client:
        push = await anext(client)
    assert isinstance(push, Disconnected)
    assert push.reason == "login_timeout"


async def test_a_take_over_ends_the_iteration_with_its_error(
    autojump_clock: MockClock, network: Network
) -> None:
    async with connect("nowhere", 1, uid="ann", open_stream=network.open) as client:
        async with connect("nowhere", 1, uid="ann", open_stream=network.open):
            assert await kinds(client, 2) == ["Connected", "Goodbye"]
            with pytest.raises(Replaced):
                await anext(client)
            with pytest.raises(Replaced):
                await client.query(["bob"])


async def test_answers_are_returned_as_python_values() -> None:
    script = ScriptedServer()
    states = {"bob": {"status": "online", "since_ms": 5, "id": "5-0", "last_seen_ms": None}}
    script.answer = {"delivered": 2, "presence": states}
    async with connect("nowhere", 1, uid="ann", open_stream=script.open) as client:
        bob = UserState("online", 5, None, "5-0")
        assert await client.send_message("bob", b"hi") == 2
        assert await client.query(["bob"]) == await client.watch(["bob"]) == {"bob": bob}


async def test_a_request_without_an_answer_times_out(autojump_clock: MockClock) -> None:
    script = ScriptedServer()
    async with connect("nowhere", 1, uid="ann", open_stream=script.open, request_timeout=3) as client:
        script.answers = False
        began = trio.current_time()
        with pytest.raises(RequestTimeout):
            await client.query(["bob"])
        assert trio.current_time() - began == pytest.approx(3)


async def test_a_cancelled_watch_is_undone_and_affects_no_other(autojump_clock: MockClock) -> None:
    script = ScriptedServer()
    async with connect("nowhere", 1, uid="ann", open_stream=script.open) as client:
        script.answers = False
        with trio.move_on_after(1):
            await client.watch(["bob"])
        await trio.sleep(1)
        assert protocol.unwatch(["bob"]) in script.received
        assert client.watched == {}
        script.answers = True
        assert await client.query(["bob"]) == {}


async def test_an_unwatch_needs_no_connection(autojump_clock: MockClock) -> None:
    script = ScriptedServer()
    script.answer = {"presence": {uid: {"status": "online", "id": "5-0"} for uid in ("bob", "eve")}}
    async with connect("nowhere", 1, uid="ann", open_stream=script.open) as client:
        await client.watch(["bob", "eve"])
        script.answers = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                client.unwatch, ["bob"]
            )  # in flight when the connection breaks, and not raised
            await trio.testing.wait_all_tasks_blocked()
            await script.hang_up()
        await client.unwatch(["eve"])
        assert (client.state, client.watched) == (State.WAITING, {})
        await client.wait_online()
        assert script.received[-1].kind == Kind.LOGIN, "there are no users to watch again"


async def test_watch_nowait_is_sent_immediately(autojump_clock: MockClock) -> None:
    script = ScriptedServer()
    script.answer = {"presence": {"bob": {"status": "online", "id": "5-0"}}}
    async with connect("nowhere", 1, uid="ann", open_stream=script.open) as client:
        client.watch_nowait(["bob"])
        assert client.watched == {"bob": UserState("unknown")}
        assert isinstance(await anext(client), Connected)
        assert await anext(client) == PresenceChanged("bob", UserState("online", id="5-0"), "watched")


async def test_beyond_the_limit_the_oldest_push_is_dropped_and_counted() -> None:
    deliveries = [protocol.deliver("bob", number, 7) for number in range(10)]
    script = ScriptedServer(login_ok(), *deliveries)
    async with connect("nowhere", 1, uid="ann", open_stream=script.open, max_pushes=4) as client:
        while client.statistics().pushes_dropped < 7:
            await trio.lowlevel.checkpoint()
        bodies = [
            push.body for push in [await anext(client) for _ in range(4)] if isinstance(push, Delivered)
        ]
    assert bodies == [6, 7, 8, 9]


async def test_a_logout_ends_the_iteration(
    autojump_clock: MockClock, server: Harness, network: Network
) -> None:
    async with connect("nowhere", 1, uid="ann", open_stream=network.open) as client:
        await client.logout("background")
        assert [type(push) async for push in client] == [Connected]
        with pytest.raises(Ended):
            await client.logout()
    assert [Code(end.code) for end in server.ends()] == [Code.BACKGROUND]


async def test_a_close_keeps_the_session_for_the_grace_period(
    autojump_clock: MockClock, server: Harness, network: Network
) -> None:
    async with connect("nowhere", 1, uid="ann", open_stream=network.open) as client:
        began = trio.current_time()
        client.close()
        assert [type(push) async for push in client] == [Connected]
        await trio.sleep(10)
    (end,) = server.ends()
    assert (Code(end.code), end.at - began >= 5) == (Code.CLOSED, True)


async def test_several_tasks_may_wait_for_pushes(autojump_clock: MockClock) -> None:
    script = ScriptedServer()
    got: list[object] = []

    async def take(client: Client) -> None:
        got.append(await anext(client))

    async with connect("nowhere", 1, uid="ann", open_stream=script.open) as client:
        await anext(client)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(take, client)
            await trio.sleep(1)
            for number in range(3):
                await script.send(protocol.deliver("bob", number, 7))
                await trio.sleep(1)
    assert len(got) == 3


async def test_errors_have_one_base_class_and_name_the_server() -> None:
    with pytest.raises(PresenceError, match="control character") as refused:
        async with connect("nowhere", 1, uid="a b"):
            pytest.fail("no such uid")
    assert isinstance(refused.value, EncodeError)
    assert isinstance(refused.value, ValueError)

    async def fail() -> Stream:
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "")

    with pytest.raises(Unreachable, match=r"cannot reach nowhere:1: Connection refused"):
        async with connect("nowhere", 1, uid="ann", open_stream=fail):
            pytest.fail("there is no server")


def test_the_package_has_the_names_in_its_all() -> None:
    assert [name for name in client_package.__all__ if not hasattr(client_package, name)] == []
