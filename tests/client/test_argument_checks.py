"""Wrong arguments are refused where they enter: by the call, before any task, thread or loop."""

import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from presence import protocol
from presence.client import ClientOptions, EncodeError, connect, connect_blocking
from presence.client.argument_checks import unix_ms
from presence.client.state_machine import ClientMachine
from tests.client.scripted_server import ScriptedServer
from tests.support.backends import on_both_backends


async def token_later() -> str:
    raise NotImplementedError


WRONG: list[tuple[dict[str, Any], type[Exception]]] = [
    *(({"port": port}, ValueError) for port in (0, -1, 65_536, 70_000)),
    *(({"port": port}, TypeError) for port in ("7400", 7400.0, True, None)),
    *(({"host": host}, ValueError) for host in ("", "a\0b")),
    *(({"host": host}, TypeError) for host in (None, b"localhost")),
    *(({"idle_timeout": each}, ValueError) for each in (0, -1, float("nan"), float("inf"), timedelta(0))),
    ({"idle_timeout": "30"}, TypeError),
    *(({"token": token}, TypeError) for token in (7, b"token")),
    ({"token": ""}, EncodeError),
    *(({"uid": uid}, EncodeError) for uid in ("a b", "", 7)),
    ({"device": "a b"}, EncodeError),
    ({"meta": {"m": "m" * 300}}, EncodeError),
    ({"meta": []}, EncodeError),
    ({"status": "asleep"}, EncodeError),
    *(({"options": options}, TypeError) for options in ({"tls": True}, None)),
]
WRONG_OPTIONS: list[tuple[dict[str, Any], type[Exception]]] = [
    *(({name: 0}, ValueError) for name in ("ask_every", "max_messages", "max_changes")),
    *(({name: -1}, ValueError) for name in ("ask_every", "max_messages", "max_changes")),
    *(({name: 1.5}, TypeError) for name in ("ask_every", "max_messages", "max_changes")),
    *(
        ({"request_timeout": each}, ValueError)
        for each in (0, -1, float("nan"), timedelta(seconds=-1), 10**400)
    ),
    *(({"request_timeout": each}, TypeError) for each in ("10", None)),
    *(({"tls": each}, TypeError) for each in (None, 5, "ca.pem", {"ca": 5})),
    ({"tls": ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)}, ValueError),
    ({"open_stream": "tunnel"}, TypeError),
]


@pytest.mark.parametrize("face", [connect, connect_blocking])
@pytest.mark.parametrize(("wrong", "error"), WRONG, ids=repr)
def test_a_wrong_argument_is_refused_by_the_call_itself(
    face: Callable[..., object], wrong: dict[str, Any], error: type[Exception]
) -> None:
    threads = threading.active_count()
    with pytest.raises(error) as refused:
        face(**{"host": "127.0.0.1", "port": 7400, "uid": "ann", **wrong})
    assert type(refused.value) is error
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("wrong", "error"), WRONG_OPTIONS, ids=lambda each: repr(each).split(" object at ")[0]
)
def test_wrong_options_cannot_be_made(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(wrong))):
        ClientOptions(**wrong)


def test_clients_with_the_same_options_share_the_authorities() -> None:
    options = ClientOptions(tls=True)
    assert options.tls_context is options.tls_context
    assert ClientOptions().tls_context is None


def test_a_token_function_of_a_script_is_a_plain_one() -> None:
    with pytest.raises(TypeError, match="plain"):
        connect_blocking("127.0.0.1", 7400, token=token_later)  # type: ignore[arg-type]


def test_the_machine_refuses_what_the_options_refuse() -> None:
    with pytest.raises(ValueError, match="ask_every"):
        ClientMachine(protocol.login("ann"), 0.0, ask_every=0)


@on_both_backends(autojump=True)
async def test_a_string_is_not_a_list_of_users() -> None:
    options = ClientOptions(open_stream=ScriptedServer().open)
    async with connect("nowhere", 1, uid="ann", options=options) as client:
        for request in (client.query, client.watch, client.unwatch):
            with pytest.raises(TypeError):
                await request("bob")
        with pytest.raises(TypeError):
            client.watch_nowait("bob")
        assert client.watched == {}


@pytest.mark.parametrize(
    ("until", "error"),
    [
        (datetime(2030, 1, 1), ValueError),
        *((timedelta(seconds=each), ValueError) for each in (0, -1)),
        (timedelta.max, ValueError),
        *((each, TypeError) for each in (1_700_000_000_000, "tomorrow")),
    ],
)
@on_both_backends(autojump=True)
async def test_an_end_without_a_zone_or_in_the_past_is_refused(until: Any, error: type[Exception]) -> None:
    script = ScriptedServer()
    options = ClientOptions(open_stream=script.open)
    async with connect("nowhere", 1, uid="ann", options=options) as client:
        with pytest.raises(error, match="until"):
            await client.update(status="busy", until=until)
        with pytest.raises(error, match="until"):
            client.log_in_with(status="busy", until=until)
        with pytest.raises(ValueError, match="idle_timeout"):
            await client.set_idle_timeout(timedelta(0))
    assert len(script.received) == 2, "login and logout"


@on_both_backends(autojump=True)
async def test_an_end_without_a_status_is_refused() -> None:
    script = ScriptedServer()
    options = ClientOptions(open_stream=script.open)
    async with connect("nowhere", 1, uid="ann", options=options) as client:
        with pytest.raises(ValueError, match="status"):
            await client.update(until=timedelta(hours=1))
        with pytest.raises(ValueError, match="status"):
            client.log_in_with(until=timedelta(hours=1))


@pytest.mark.parametrize("uses", ["online", "offline"])
@on_both_backends(autojump=True)
async def test_an_unknown_kind_of_push_is_refused(uses: str) -> None:
    options = ClientOptions(open_stream=ScriptedServer().open)
    client = await connect("nowhere", 1, uid="ann", wait=uses == "online", options=options)
    for kind in ("message", "", 7):
        with pytest.raises(ValueError, match="messages, presence, rooms, connection"):
            await client.receive(kind)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="messages, presence, rooms, connection"):
            client.receive_nowait(kind)  # type: ignore[arg-type]
    await client.aclose()


@on_both_backends(autojump=True)
async def test_no_pass_is_not_a_pass() -> None:
    options = ClientOptions(open_stream=ScriptedServer().open)
    async with connect("nowhere", 1, uid="ann", options=options) as client:
        with pytest.raises(TypeError, match="pass"):
            await client.add_pass(None)  # type: ignore[arg-type]


def test_a_time_and_a_duration_are_the_same_end() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    ends = partial(unix_ms, status="busy", server_time=lambda: now)
    assert ends(now + timedelta(seconds=90)) == ends(timedelta(seconds=90)) is not None
    assert ends(None) is None
