"""The program's token function, as the client calls it."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from presence.client import (
    ClientOptions,
    Disconnected,
    EncodeError,
    NoToken,
    State,
    connect,
    connect_blocking,
)
from presence.client.login_token import TOKEN_TIMEOUT_S
from presence.protocol import Kind
from tests.client.granting_server import PATIENCE_S, GrantingServer
from tests.client.machine_driver import SERVER_TIME_S, token
from tests.client.scripted_server import ScriptedServer
from tests.support.backends import on_both_backends

LIFE_S = 600.0


@on_both_backends(autojump=True)
async def test_an_error_of_the_function_is_the_cause_of_the_clients_error() -> None:
    def fail() -> str:
        raise OSError("no way there")

    with pytest.raises(NoToken, match="OSError: no way there") as failure:
        async with connect(
            "nowhere", 1, token=fail, options=ClientOptions(open_stream=ScriptedServer().open)
        ):
            pytest.fail("there is no token")
    assert isinstance(failure.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "the token must be a string that is not empty"),
        ("", "the token must be a string that is not empty"),
        (b"a.b.c", "the token must be a string that is not empty"),
        ("x" * 769, "the token is longer than 768 bytes"),
        ("\ud800", "cannot be packed"),
    ],
)
@on_both_backends(autojump=True)
async def test_the_error_says_what_is_wrong_with_what_the_function_returned(made: Any, message: str) -> None:
    with pytest.raises(NoToken, match=f"^no token: EncodeError: .*{message}") as failure:
        async with connect(
            "nowhere", 1, token=lambda: made, options=ClientOptions(open_stream=ScriptedServer().open)
        ):
            pytest.fail("there is no token")
    assert isinstance(failure.value.__cause__, EncodeError)


def test_a_function_whose_own_task_was_cancelled_has_failed() -> None:
    async def main() -> None:
        shared = asyncio.ensure_future(anyio.sleep(3600))
        shared.cancel()

        async def wait_for_another() -> str:
            await shared
            return ""

        opening = ScriptedServer().open
        async with connect(
            "nowhere", 1, token=wait_for_another, wait=False, options=ClientOptions(open_stream=opening)
        ) as client:
            push = await anext(client)
            client.disconnect()
        assert isinstance(push, Disconnected)
        assert push.reason == "no_token"

    asyncio.run(main())


@on_both_backends(autojump=True)
async def test_a_function_that_hangs_is_cancelled_and_called_again() -> None:
    calls: list[float] = []

    async def hang() -> str:
        calls.append(anyio.current_time())
        await anyio.sleep(20 * TOKEN_TIMEOUT_S)
        return ""

    async with connect(
        "nowhere", 1, token=hang, wait=False, options=ClientOptions(open_stream=ScriptedServer().open)
    ) as client:
        push = await anext(client)
        assert isinstance(push, Disconnected)
        await anyio.sleep(push.retry_in + TOKEN_TIMEOUT_S)
        client.disconnect()
    assert len(calls) == 2


@on_both_backends(autojump=True)
async def test_a_function_that_hangs_while_online_delays_nothing() -> None:
    script, calls = ScriptedServer(), list[float]()

    async def once() -> str:
        calls.append(anyio.current_time())
        if len(calls) > 1:
            await anyio.sleep_forever()
        return token(SERVER_TIME_S + LIFE_S)

    async with connect("nowhere", 1, token=once, options=ClientOptions(open_stream=script.open)) as client:
        await anyio.sleep(LIFE_S)
        assert (client.state, client.statistics().losses) == (State.ONLINE, 0)
    assert len(calls) >= 3
    assert Kind.UPDATE not in {packet.kind for packet in script.received}


# The blocking client


@pytest.fixture
def server() -> Iterator[GrantingServer]:
    server = GrantingServer()
    yield server
    server.close()


def test_keepalives_continue_while_a_blocking_function_makes_a_fresh_token(server: GrantingServer) -> None:
    threads = set(threading.enumerate())
    called, done = threading.Event(), threading.Event()
    made = [token(SERVER_TIME_S + 1, 1), token(SERVER_TIME_S + 3600, 2)]
    given = iter(made)

    def slow() -> str:
        text = next(given)
        if text == made[1]:
            called.set()
            assert done.wait(PATIENCE_S)
        return text

    try:
        with connect_blocking(*server.address, token=slow) as client:
            assert called.wait(PATIENCE_S)
            with server.packet_arrived:
                keepalives = len(server.received)
                assert server.packet_arrived.wait_for(
                    lambda: len(server.received) >= keepalives + 2, PATIENCE_S
                )
            done.set()
            assert server.tokens(Kind.UPDATE, 1) == made[1:]
            assert client.statistics().logins == 1
    finally:
        done.set()
    assert server.tokens(Kind.LOGIN, 1) == made[:1]
    assert set(threading.enumerate()) <= threads, "a thread of the client is left"


def test_a_blocking_function_may_raise(server: GrantingServer) -> None:
    def fail() -> str:
        raise LookupError("no way there")

    with pytest.raises(NoToken, match="LookupError: no way there"):
        with connect_blocking(*server.address, token=fail):
            pytest.fail("there is no token")
