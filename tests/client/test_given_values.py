"""What a program changes after it has given it to the client: the client keeps what it was given."""

from typing import Any

import anyio
import pytest

from presence import protocol
from presence.client import ClientOptions, EncodeError, State, connect
from presence.client.assembly import Connecting
from presence.protocol import Code, Kind
from tests.client.scripted_server import ScriptedServer
from tests.support.backends import on_both_backends


def opening(script: ScriptedServer, **login: Any) -> Connecting:
    return connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open), **login)


def shown(script: ScriptedServer, kind: Kind) -> list[dict[str, Any] | None]:
    return [packet.payload.get("meta") for packet in script.received if packet.kind == kind]


@pytest.mark.parametrize("later", [{"mood": "bad"}, {"mood": "m" * 300}, {"mood": object()}])
@on_both_backends(autojump=True)
async def test_a_later_login_carries_the_meta_of_the_first(later: dict[str, object]) -> None:
    script, meta = ScriptedServer(), dict[str, object](mood="good", tags=["a"])
    async with opening(script, meta=meta) as client:
        meta.update(later)
        await script.hang_up()
        await anyio.sleep(5)
        assert client.state is State.ONLINE
    assert shown(script, Kind.LOGIN) == [{"mood": "good", "tags": ["a"]}] * 2


@on_both_backends(autojump=True)
async def test_a_later_login_carries_the_meta_that_the_server_has_granted() -> None:
    script, meta = ScriptedServer(), {"tags": ["a"]}
    async with opening(script) as client:
        await client.update(meta=meta)
        meta["tags"].append("t" * 300)
        with pytest.raises(EncodeError):
            await client.update(meta=meta)
        await script.hang_up()
        await anyio.sleep(5)
        assert client.state is State.ONLINE
    assert shown(script, Kind.LOGIN) == [None, {"tags": ["a"]}]


@on_both_backends(autojump=True)
async def test_a_later_login_carries_the_meta_that_the_program_has_set_for_it() -> None:
    script, meta = ScriptedServer(), {"tags": ["a"]}
    async with opening(script) as client:
        client.log_in_with(meta=meta)
        meta["tags"].append("b")
        await script.hang_up()
        await anyio.sleep(5)
    assert shown(script, Kind.LOGIN) == [None, {"tags": ["a"]}]


@pytest.mark.parametrize("later", [2, object()])
@on_both_backends(autojump=True)
async def test_a_message_that_waits_to_be_sent_is_the_one_that_was_given(later: object) -> None:
    script, bodies = ScriptedServer(), list[dict[str, object]]([{"n": 0}, {"n": 1}])
    async with opening(script) as client, anyio.create_task_group() as tasks:
        script.answers = False
        for body in bodies:
            tasks.start_soon(client.send_message, "bob", body)
            await anyio.sleep(0.1)
        for body in bodies:
            body["n"] = later
        (first,) = [packet for packet in script.received if packet.kind == Kind.MESSAGE]
        script.answers = True  # the first is sent again, then the second
        await script.send(protocol.error(first.id, Code.RECIPIENT_DISCONNECTED, "wait"))
    sent = [packet.payload["body"] for packet in script.received if packet.kind == Kind.MESSAGE]
    assert sent == [{"n": 0}, {"n": 0}, {"n": 1}]
