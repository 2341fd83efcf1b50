"""Streams that the program opens: what goes wrong in them, and what the program is told."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint

from presence.client import Client, ClientOptions, Ended, State, connect
from presence.client.assembly import Connecting
from tests.client.scripted_server import ScriptedServer
from tests.support.backends import living_tasks, on_both_backends

Open = Callable[[], Awaitable[Any]]


def opening(open_stream: Open, *, wait: bool = True) -> Connecting:
    return connect("nowhere", 1, uid="ann", wait=wait, options=ClientOptions(open_stream=open_stream))


def failing(script: ScriptedServer, call: str, error: BaseException, *, at: int) -> Open:
    """Return a function whose streams raise in the call with this number."""
    calls = 0

    async def open_stream() -> ByteStream:
        stream = await script.open()
        method = getattr(stream, call)

        async def fails(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            try:
                return await method(*arguments)
            finally:
                if calls == at:
                    raise error

        setattr(stream, call, fails)
        return stream

    return open_stream


@pytest.mark.parametrize("made", [None, "a stream", (1, 2)])
@on_both_backends(autojump=True)
async def test_a_function_that_returns_no_stream_is_a_wrong_argument(made: object) -> None:
    async def open_stream() -> Any:
        return made

    before = living_tasks()
    with pytest.raises(TypeError, match="open_stream must return"):
        await opening(open_stream)
    assert living_tasks() == before


@pytest.mark.parametrize("call", ["send", "receive"])
@on_both_backends(autojump=True)
async def test_an_exception_of_a_stream_ends_the_client_and_is_raised_alone(call: str) -> None:
    script, before = ScriptedServer(), living_tasks()
    client = await opening(failing(script, call, LookupError("mine"), at=2))
    with pytest.raises(Ended, match="LookupError: mine"):
        await _until_the_end(client)
    with pytest.raises(LookupError, match="mine"):
        await client.aclose()
    assert (script.ends, living_tasks()) == (["client"], before)


async def _until_the_end(client: Client) -> None:
    with anyio.fail_after(100):
        while True:
            await client.receive()


@pytest.mark.parametrize("error", [OSError("gone"), anyio.BrokenResourceError()])
@on_both_backends(autojump=True)
async def test_a_connection_that_cannot_be_closed_well_is_over_all_the_same(error: Exception) -> None:
    script = ScriptedServer()
    client = await opening(failing(script, "aclose", error, at=1))
    await script.hang_up()
    await anyio.sleep(5)
    assert (client.state, script.connections) == (State.ONLINE, 2)
    await client.aclose()


@on_both_backends(autojump=True)
async def test_a_function_that_cannot_be_cancelled_in_time_does_not_connect_an_ended_client() -> None:
    script, before = ScriptedServer(), living_tasks()

    async def open_stream() -> ByteStream:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(3)
        return await script.open()

    client = await opening(open_stream, wait=False)
    await checkpoint()
    await client.aclose()
    assert (script.received, living_tasks()) == ([], before)
    assert script.ends == ["client"] * script.connections
