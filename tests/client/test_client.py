"""The client on asyncio and trio, over a server in memory, in virtual time."""

import errno
from datetime import timedelta

import anyio
import pytest
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint

from presence import client as client_package
from presence import protocol
from presence.client import (
    Client,
    ClientOptions,
    Connected,
    ConnectionLost,
    Delivered,
    Disconnected,
    Dropped,
    EncodeError,
    Ended,
    PresenceChanged,
    PresenceError,
    Receipt,
    Replaced,
    RequestTimeout,
    State,
    Unreachable,
    UserState,
    connect,
)
from presence.client.async_client import CONFIRM_S
from presence.protocol import Code, Kind
from tests.client.machine_driver import login_ok
from tests.client.scripted_server import ScriptedServer
from tests.support.backends import living_tasks, on_both_backends


async def kinds(client: Client, count: int) -> list[str]:
    """Return the names of the next pushes' types."""
    return [type(await anext(client)).__name__ for _ in range(count)]


def sent(script: ScriptedServer) -> list[int]:
    return [packet.kind for packet in script.received]


@pytest.mark.parametrize("by", ["exception", "cancellation"])
@on_both_backends(autojump=True)
async def test_leaving_the_block_early_closes_without_a_logout(by: str) -> None:
    script = ScriptedServer()

    async def live() -> None:
        async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)):
            if by == "exception":
                raise KeyError("mine")
            await anyio.sleep_forever()

    with anyio.move_on_after(10):
        with pytest.raises(KeyError if by == "exception" else anyio.get_cancelled_exc_class()):
            await live()
    assert script.ends == ["client"]
    assert Kind.LOGOUT not in sent(script)


@on_both_backends(autojump=True)
async def test_no_task_is_left_behind() -> None:
    script = ScriptedServer()
    before = living_tasks()
    for number in range(20):
        with anyio.move_on_after(1):
            async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)):
                if number % 2:
                    await anyio.sleep_forever()
    await anyio.sleep(5)
    assert living_tasks() == before
    assert script.ends == ["client"] * 20


@on_both_backends(autojump=True)
async def test_a_broken_connection_is_replaced_soon() -> None:
    script = ScriptedServer()
    async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
        began = anyio.current_time()
        await script.hang_up()
        assert await kinds(client, 3) == ["Connected", "Disconnected", "Connected"]
        assert anyio.current_time() - began < 5
        await anyio.sleep(60)
        assert (client.statistics().logins, client.statistics().losses) == (2, 1)


@on_both_backends(autojump=True)
async def test_a_peer_that_reads_nothing_does_not_stop_the_timers() -> None:
    script = ScriptedServer()
    script.reads = False
    async with connect(
        "nowhere", 1, uid="ann", wait=False, options=ClientOptions(open_stream=script.open)
    ) as client:
        push = await anext(client)
    assert isinstance(push, Disconnected)
    assert push.reason == "login_timeout"


@on_both_backends(autojump=True)
async def test_a_bug_in_the_client_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ScriptedServer()
    raised: list[BaseException] = []

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async def live() -> None:
        async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
            monkeypatch.setattr(client._link.machine, "received", fail)
            with anyio.CancelScope(shield=True), anyio.fail_after(5):
                try:
                    await client.query(["bob"])
                except PresenceError as error:
                    raised.append(error)

    with pytest.raises(RuntimeError, match="a bug"):
        await live()
    assert isinstance(raised[0], ConnectionLost), "it was in flight: perhaps carried out"


@on_both_backends(autojump=True)
async def test_a_push_that_is_there_is_returned_without_waiting() -> None:
    script = ScriptedServer()
    async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
        assert isinstance(client.receive_nowait(), Connected)
        with pytest.raises(TimeoutError):
            client.receive_nowait()


@on_both_backends(autojump=True)
async def test_a_message_whose_call_is_cancelled_is_not_sent_again() -> None:
    script = ScriptedServer()
    script.answers = False
    async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
        with anyio.move_on_after(0.5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.send_message, "bob", "hello")
                await anyio.sleep(0.1)
                id = script.received[-1].id
                away = protocol.error(id, Code.RECIPIENT_DISCONNECTED, "may return", 5.0)
                await script.send(away)
        script.answers = True
        await anyio.sleep(5)
    assert sent(script).count(Kind.MESSAGE) == 1


@on_both_backends(autojump=True)
async def test_a_take_over_ends_the_iteration_with_its_error() -> None:
    script = ScriptedServer()
    async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
        await script.send(protocol.goodbye(Code.REPLACED))
        assert await kinds(client, 2) == ["Connected", "Goodbye"]
        with pytest.raises(Replaced):
            await anext(client)
        with pytest.raises(Replaced):
            await client.query(["bob"])


@on_both_backends(autojump=True)
async def test_answers_are_returned_as_python_values() -> None:
    script = ScriptedServer()
    states = {"bob": {"status": "online", "since_ms": 5, "id": "5-0", "last_seen_ms": None}}
    script.answer = {"delivered": 2, "presence": states}
    async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
        bob = UserState("online", 5, None, "5-0")
        assert await client.send_message("bob", b"hi") == 2
        assert await client.send_confirmed("bob", b"hi") == Receipt(2, 0, 0, 2), "of an older server"
        assert script.received[-1].payload == {"to": "bob", "body": b"hi", "confirm": CONFIRM_S}
        script.answer |= {"confirmed": 2, "by_app": 1, "unconfirmed": 0}
        half_a_second = timedelta(seconds=0.5)
        assert await client.send_confirmed("bob", b"hi", confirm=half_a_second) == Receipt(2, 2, 1, 0)
        assert script.received[-1].payload["confirm"] == 0.5
        for wrong in (0, 30.5, float("inf")):
            with pytest.raises(ValueError, match="confirm must be"):
                await client.send_confirmed("bob", 1, confirm=wrong)
        assert await client.query(["bob"]) == await client.watch(["bob"]) == {"bob": bob}


@on_both_backends(autojump=True)
async def test_the_answer_to_a_confirmed_message_may_come_later_than_others() -> None:
    script = ScriptedServer()
    options = ClientOptions(open_stream=script.open, request_timeout=3)
    async with connect("nowhere", 1, uid="ann", options=options) as client:
        script.unanswered.add(Kind.MESSAGE)
        began = anyio.current_time()
        with pytest.raises(RequestTimeout):
            await client.send_confirmed("bob", 1, confirm=20)
        assert anyio.current_time() - began == pytest.approx(23)


@on_both_backends(autojump=True)
async def test_a_request_without_an_answer_times_out() -> None:
    script = ScriptedServer()
    async with connect(
        "nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open, request_timeout=3)
    ) as client:
        script.answers = False
        began = anyio.current_time()
        with pytest.raises(RequestTimeout):
            await client.query(["bob"])
        assert anyio.current_time() - began == pytest.approx(3)


@on_both_backends(autojump=True)
async def test_a_cancelled_watch_is_undone_and_affects_no_other() -> None:
    script = ScriptedServer()
    async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
        script.answers = False
        with anyio.move_on_after(1):
            await client.watch(["bob"])
        await anyio.sleep(1)
        assert protocol.unwatch(["bob"]).payload in [
            each.payload for each in script.received if each.kind == Kind.UNWATCH
        ]
        assert client.watched == {}
        script.answers = True
        assert await client.query(["bob"]) == {}


@on_both_backends(autojump=True)
async def test_a_cancelled_roster_is_undone() -> None:
    script = ScriptedServer()
    async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
        script.answers = False
        with anyio.move_on_after(1):
            await client.watch_roster()
        await anyio.sleep(1)
        assert {"uids": [], "roster": True} in [
            each.payload for each in script.received if each.kind == Kind.UNWATCH
        ]


@on_both_backends(autojump=True)
async def test_the_roster_is_given_to_the_caller_and_its_changes_to_the_iterator() -> None:
    script = ScriptedServer()
    script.answer = {"states": ["bob"], "roster": 1}
    async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
        assert await client.watch_roster() == {"bob": UserState("offline")}
        await script.send(protocol.changes([["kim", "away", 6, 1, 0], ["bob", "removed", 7]]))
        changes = [await client.receive("presence") for _ in range(2)]
        assert changes == [
            PresenceChanged("kim", UserState("away", id="1-0"), "watched"),
            PresenceChanged("bob", UserState("removed"), "removed"),
        ]
        assert client.watched == {"kim": UserState("away", id="1-0")}


@on_both_backends(autojump=True)
async def test_the_roster_is_unwatched_and_named_users_stay() -> None:
    script = ScriptedServer()
    script.answer = {"states": ["bob"], "roster": 1}
    async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
        await client.watch_roster()
        script.answer = {"states": ["eve"]}
        await client.watch(["eve"])
        await client.unwatch_roster()
        assert (script.received[-1].kind, script.received[-1].payload) == (
            Kind.UNWATCH,
            {"uids": [], "roster": True},
        )
        assert client.watched == {"eve": UserState("offline")}
        await script.hang_up()
        while not isinstance(await client.receive("connection"), Disconnected):
            pass
        await client.unwatch_roster()
        assert client.state is State.WAITING


@on_both_backends(autojump=True)
async def test_an_unwatch_needs_no_connection() -> None:
    script = ScriptedServer()
    script.answer = {"presence": {uid: {"status": "online", "id": "5-0"} for uid in ("bob", "eve")}}
    async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
        await client.watch(["bob", "eve"])
        script.answers = False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.unwatch, ["bob"])  # in flight when the connection breaks, and not raised
            await anyio.sleep(0.1)
            await script.hang_up()
        await client.unwatch(["eve"])
        assert (client.state, client.watched) == (State.WAITING, {})
        await client.wait_online()
        assert script.received[-1].kind == Kind.LOGIN, "there are no users to watch again"


@on_both_backends(autojump=True)
async def test_watch_nowait_is_sent_immediately() -> None:
    script = ScriptedServer()
    script.answer = {"presence": {"bob": {"status": "online", "id": "5-0"}}}
    async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
        client.watch_nowait(["bob"])
        assert client.watched == {"bob": UserState("unknown")}
        assert isinstance(await anext(client), Connected)
        assert await anext(client) == PresenceChanged("bob", UserState("online", id="5-0"), "watched")


@on_both_backends(autojump=True)
async def test_in_the_place_of_messages_beyond_the_limit_is_their_number() -> None:
    deliveries = [protocol.deliver("bob", number, 7) for number in range(10)]
    script = ScriptedServer(login_ok(), *deliveries)
    async with connect(
        "nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open, max_messages=4)
    ) as client:
        while client.statistics().pushes_dropped < 6:
            await checkpoint()
        pushes = [await anext(client) for _ in range(6)]
    assert isinstance(pushes[0], Connected)
    assert pushes[1:] == [Dropped("messages", 6), *(Delivered("bob", number, 7) for number in (6, 7, 8, 9))]


@on_both_backends(autojump=True)
async def test_a_logout_ends_the_iteration() -> None:
    script = ScriptedServer()
    async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
        await client.logout("background")
        assert [type(push) async for push in client] == [Connected]
        with pytest.raises(Ended):
            await client.logout()
        with pytest.raises(Ended):
            await client.receive()
    assert script.received[-1].payload == {"reason": "background"}


@on_both_backends(autojump=True)
async def test_a_disconnect_ends_the_iteration_without_a_logout() -> None:
    script = ScriptedServer()
    async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
        client.disconnect()
        assert [type(push) async for push in client] == [Connected]
        await anyio.sleep(10)
    assert script.ends == ["client"]
    assert Kind.LOGOUT not in sent(script)


@on_both_backends(autojump=True)
async def test_several_tasks_may_wait_for_pushes() -> None:
    script = ScriptedServer()
    got: list[object] = []

    async def take(client: Client) -> None:
        got.append(await anext(client))

    async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
        await anext(client)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(take, client)
            await anyio.sleep(1)
            for number in range(3):
                await script.send(protocol.deliver("bob", number, 7))
                await anyio.sleep(1)
    assert len(got) == 3


@on_both_backends(autojump=True)
async def test_errors_have_one_base_class_and_name_the_server() -> None:
    with pytest.raises(PresenceError, match="control character") as refused:
        async with connect("nowhere", 1, uid="a b"):
            pytest.fail("no such uid")
    assert isinstance(refused.value, EncodeError)
    assert isinstance(refused.value, ValueError)

    async def fail() -> ByteStream:
        await checkpoint()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "")

    with pytest.raises(Unreachable, match=r"cannot reach nowhere:1: Connection refused"):
        async with connect("nowhere", 1, uid="ann", options=ClientOptions(open_stream=fail)):
            pytest.fail("there is no server")


def test_the_package_has_the_names_in_its_all() -> None:
    assert [name for name in client_package.__all__ if not hasattr(client_package, name)] == []
