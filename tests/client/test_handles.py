"""A client without a block: opened and closed anywhere, in different tasks, and nothing is left behind."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import anyio
import pytest
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint

from presence import protocol
from presence.client import (
    Client,
    ClientOptions,
    Connected,
    Ended,
    LoginRefused,
    NotConnected,
    State,
    Unreachable,
    connect,
)
from presence.client.assembly import Connecting
from presence.protocol import Code, Kind
from tests.client.scripted_server import ScriptedServer
from tests.support.backends import BACKENDS, living_tasks, on_both_backends, run_on


def opening(script: ScriptedServer, *, wait: bool = True) -> Connecting:
    return connect("nowhere", 1, uid="ann", wait=wait, options=ClientOptions(open_stream=script.open))


def kinds(script: ScriptedServer) -> list[int]:
    return [packet.kind for packet in script.received]


@on_both_backends(autojump=True)
async def test_an_awaited_client_is_online_until_it_is_closed() -> None:
    script, before = ScriptedServer(), living_tasks()
    client = await opening(script)
    await anyio.sleep(100)
    assert (client.state, script.ends) == (State.ONLINE, [])
    await client.aclose()
    assert (kinds(script)[-1], script.ends) == (Kind.LOGOUT, ["client"])
    assert living_tasks() == before


@on_both_backends(autojump=True)
async def test_closing_again_does_nothing() -> None:
    script = ScriptedServer()
    client = await opening(script)
    for _ in range(3):
        await client.aclose()
    assert kinds(script).count(Kind.LOGOUT) == 1


@on_both_backends(autojump=True)
async def test_several_tasks_may_close_it_together() -> None:
    script = ScriptedServer()
    client = await opening(script)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(client.aclose)
    assert (kinds(script).count(Kind.LOGOUT), script.ends) == (1, ["client"])


@pytest.mark.parametrize("fails", [False, True], ids=["normally", "by an exception"])
@on_both_backends(autojump=True)
async def test_a_block_entered_in_one_task_is_left_in_another(fails: bool) -> None:
    script, connecting, before = ScriptedServer(), [], living_tasks()

    async def enter() -> None:
        connecting.append(opening(script))
        assert (await connecting[0].__aenter__()).state is State.ONLINE

    async def leave() -> None:
        error = KeyError("mine") if fails else None
        await connecting[0].__aexit__(type(error) if error else None, error, None)

    for step in (enter, leave):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(step)
    assert (Kind.LOGOUT in kinds(script)) is not fails
    assert (script.ends, living_tasks()) == (["client"], before)


@pytest.mark.parametrize("fails", [False, True], ids=["normally", "by an exception"])
@on_both_backends(autojump=True)
async def test_an_awaited_client_may_be_closed_by_a_block(fails: bool) -> None:
    script, before = ScriptedServer(), living_tasks()
    client = await opening(script)
    with suppress(KeyError):
        async with client as same:
            assert same is client
            if fails:
                raise KeyError("mine")
    assert (Kind.LOGOUT in kinds(script)) is not fails
    assert (client.state, script.ends, living_tasks()) == (State.ENDED, ["client"], before)


def test_a_client_whose_task_is_cancelled_before_it_begins_has_ended() -> None:
    async def main() -> None:
        client = await opening(ScriptedServer(), wait=False)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as at the end of a program
            task.cancel()
        with anyio.fail_after(60), pytest.raises(Ended):
            await client.wait_online()
        await client.aclose()

    run_on("asyncio", main, autojump=True)


@on_both_backends(autojump=True)
async def test_a_client_outlives_the_task_that_opened_it() -> None:
    script, clients = ScriptedServer(), list[Client]()

    async def enter() -> None:
        with anyio.CancelScope() as scope:
            clients.append(await opening(script))
            scope.cancel()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(enter)
    await anyio.sleep(100)
    assert await clients[0].query([]) == {}
    await clients[0].aclose()


@on_both_backends(autojump=True)
async def test_a_cancelled_close_leaves_nothing_behind() -> None:
    script, before = ScriptedServer(), living_tasks()
    client = await opening(script)
    script.reads = False  # the logout cannot be written
    with anyio.move_on_after(0.5):
        await client.aclose()
    assert (client.state, script.ends, living_tasks()) == (State.ENDED, ["client"], before)


@pytest.mark.parametrize("steps", range(6))
@on_both_backends(autojump=True)
async def test_an_attempt_may_be_cancelled_after_any_step(steps: int) -> None:
    script, before = ScriptedServer(), living_tasks()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_connect_and_stay, script)
        for _ in range(steps):
            await checkpoint()
        tasks.cancel_scope.cancel()
    assert living_tasks() == before
    assert len(script.ends) == script.connections


async def _connect_and_stay(script: ScriptedServer) -> None:
    async with opening(script):
        await anyio.sleep_forever()


@on_both_backends(autojump=True)
async def test_a_failed_attempt_leaves_nothing_behind() -> None:
    before = living_tasks()
    with pytest.raises(LoginRefused):
        await opening(ScriptedServer(protocol.error(1, Code.AUTH_FAILED, "no")))

    async def fail() -> ByteStream:
        await checkpoint()
        raise OSError("no way there")

    with pytest.raises(Unreachable, match="no way there"):
        await connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=fail))
    assert living_tasks() == before


@on_both_backends(autojump=True)
async def test_each_call_makes_one_client() -> None:
    connecting = opening(ScriptedServer())
    async with connecting:
        with pytest.raises(RuntimeError, match="one client"):
            await connecting


@on_both_backends(autojump=True)
async def test_a_disconnect_needs_no_wait_and_leaves_nothing_behind() -> None:
    script, before = ScriptedServer(), living_tasks()
    client = await opening(script)
    client.disconnect()
    await anyio.sleep(1)
    assert (Kind.LOGOUT in kinds(script), script.ends, living_tasks()) == (False, ["client"], before)
    await client.aclose()


@on_both_backends(autojump=True)
async def test_a_close_while_offline_ends_the_client() -> None:
    client = await opening(ScriptedServer(), wait=False)
    with pytest.raises(NotConnected):
        await client.query(["bob"])
    await client.aclose()
    with pytest.raises(Ended):
        await client.wait_online()


@pytest.mark.parametrize("use", [lambda client: client.query([]), lambda client: client.receive()])
@on_both_backends(autojump=True)
async def test_an_exception_of_the_programs_stream_ends_the_client_and_is_raised_by_close(
    use: Callable[[Client], object],
) -> None:
    async def fail() -> ByteStream:
        await checkpoint()
        raise LookupError("mine")

    client = await connect("nowhere", 1, uid="ann", wait=False, options=ClientOptions(open_stream=fail))
    await anyio.sleep(1)
    with pytest.raises(Ended) as ended:
        await use(client)  # type: ignore[misc]
    assert isinstance(ended.value.__cause__, LookupError)
    with pytest.raises(LookupError, match="mine"):
        await client.aclose()
    with pytest.raises(LookupError, match="mine"):
        await connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=fail))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_program_that_closes_nothing_ends_all_the_same(backend: str) -> None:
    script = ScriptedServer()

    async def main() -> None:
        client = await opening(script)
        assert isinstance(await client.receive(), Connected)

    run_on(backend, main, autojump=True)
    assert (Kind.LOGOUT in kinds(script), script.ends) == (False, ["client"])


# The iterators of one kind


@on_both_backends(autojump=True)
async def test_each_kind_may_be_read_by_a_task_of_its_own() -> None:
    script = ScriptedServer()
    script.answer = {"presence": {"bob": {"status": "offline"}}}
    got: dict[str, list[object]] = {"messages": [], "presence": [], "connection": []}
    client = await opening(script)
    await client.watch(["bob"])

    async def read(kind: str, pushes: object) -> None:
        async for push in pushes:  # type: ignore[attr-defined]
            got[kind].append(push)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read, "messages", client.messages())
        tasks.start_soon(read, "presence", client.presence_changes())
        tasks.start_soon(read, "connection", client.connection_changes())
        for number in (1, 2):
            await script.send(protocol.presence("bob", {"status": "online", "id": f"{number}-0"}, "login"))
            await script.send(protocol.deliver("bob", number, 7))
        await anyio.sleep(1)
        await client.aclose()  # which ends the three
    assert [push.body for push in got["messages"]] == [1, 2]  # type: ignore[attr-defined]
    assert [push.state.id for push in got["presence"]] == ["1-0", "2-0"]  # type: ignore[attr-defined]
    assert [type(push) for push in got["connection"]] == [Connected]


@on_both_backends(autojump=True)
async def test_an_iterator_of_one_kind_raises_what_ended_the_client() -> None:
    script = ScriptedServer()
    async with opening(script) as client:
        await script.send(protocol.goodbye(Code.KICKED))
        with pytest.raises(Ended):
            async for _ in client.messages():
                pass
        assert isinstance(await anext(client.connection_changes()), Connected)
