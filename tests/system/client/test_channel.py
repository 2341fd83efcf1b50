"""The channel of an app, as its clients see it: two real servers on one Redis, and users on both."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import anyio
import pytest
from anyio.abc import ByteStream

from presence.client import (
    Client,
    ClientOptions,
    Connected,
    Delivered,
    Disconnected,
    PresenceChanged,
    Push,
    RecipientOffline,
    SessionLimit,
    UserState,
    connect,
    connect_blocking,
)
from presence.store.embedded import embedded_redis
from tests.client.quick_server import QuickServer
from tests.support.backends import on_both_backends
from tests.support.server_process import running_server
from tests.support.waiting import wait_for

FLAGS = ("--idle-timeout", "5", "--tick", "0.5", "--disconnect-grace", "2", "--max-sessions", "2")
MAX_WATCHES = 5
DEADLINE_S = 15.0
T = TypeVar("T", bound=Push)


class Servers(NamedTuple):
    """Two nodes; `first.told` reads the events of both."""

    first: QuickServer
    second: QuickServer


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    flags = (*FLAGS, "--max-watches", str(MAX_WATCHES))
    with embedded_redis() as redis:
        with running_server("--redis", redis.url, *flags) as first:
            with running_server("--redis", redis.url, *flags) as second:
                yield Servers(QuickServer(first, redis.url), QuickServer(second, redis.url))


@pytest.fixture
def ann(request: pytest.FixtureRequest) -> str:
    """A user of this test alone, and so `bob`."""
    return "ann-" + hashlib.sha256(request.node.name.encode()).hexdigest()[:12]


@pytest.fixture
def bob(ann: str) -> str:
    return ann.replace("ann", "bob")


async def taken(client: Client, kind: type[T]) -> T:
    """Return the next push of a kind."""
    with anyio.fail_after(DEADLINE_S):
        async for push in client:
            if isinstance(push, kind):
                return push
    raise AssertionError("it ended")


async def changed(client: Client) -> tuple[str, str]:
    """Return status and reason of the next presence change."""
    push = await taken(client, PresenceChanged)
    assert client.watched[push.uid].id == push.state.id or client.watched[push.uid].is_newer_than(push.state)
    return push.state.status, push.reason


async def got_round(client: Client, uid: str) -> None:
    """Wait until a user is known to be online: a login is granted before Redis has it."""
    with anyio.fail_after(DEADLINE_S):
        while (await client.query([uid]))[uid].status != "online":  # noqa: ASYNC110
            await anyio.sleep(0.02)


class Line:
    """Connections of one client that the test can cut."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self._streams: list[ByteStream] = []

    async def open(self) -> ByteStream:
        self._streams.append(await anyio.connect_tcp(*self.address))
        return self._streams[-1]

    async def cut(self) -> None:
        await anyio.aclose_forcefully(self._streams[-1])


# Watching


@on_both_backends()
async def test_whoever_watches_sees_another_node_s_user_come_and_go(
    servers: Servers, ann: str, bob: str
) -> None:
    async with connect(*servers.first.address, uid=ann) as watcher:
        assert await watcher.watch([bob]) == {bob: UserState("offline")}
        async with connect(*servers.second.address, uid=bob) as client:
            online = await taken(watcher, PresenceChanged)
            await client.logout("background")
        offline = await taken(watcher, PresenceChanged)
    assert (online.state.status, online.reason) == ("online", "login")
    assert (offline.state.status, offline.reason) == ("offline", "background")
    assert online.state.since_ms is not None
    assert offline.state.last_seen_ms is not None
    assert online.state.since_ms <= offline.state.last_seen_ms
    assert offline.state.is_newer_than(online.state)


@on_both_backends()
async def test_what_a_user_says_of_himself_is_shown(servers: Servers, ann: str, bob: str) -> None:
    async with connect(*servers.second.address, uid=bob, meta={"app": "1.2", "key": b"\0\xff"}) as client:
        async with connect(*servers.first.address, uid=ann) as watcher:
            await got_round(watcher, bob)
            state = (await watcher.watch([bob]))[bob]
            assert (state.status, dict(state.meta)) == ("online", {"app": "1.2", "key": b"\0\xff"})
            await client.update(meta={"status": "at lunch"})
            updated = await taken(watcher, PresenceChanged)
            assert (updated.reason, dict(updated.state.meta)) == ("updated", {"status": "at lunch"})
            assert updated.state.since_ms == state.since_ms
            await client.away()
            assert await changed(watcher) == ("away", "away")
            await client.back()
            assert await changed(watcher) == ("online", "back")
            assert (await watcher.query([bob]))[bob] == watcher.watched[bob]


@on_both_backends()
async def test_a_watch_without_waiting_needs_no_connection_yet(servers: Servers, ann: str, bob: str) -> None:
    async with connect(*servers.second.address, uid=bob) as client:
        await got_round(client, bob)
        async with connect(*servers.first.address, uid=ann, wait=False) as watcher:
            watcher.watch_nowait([bob])
            assert watcher.watched[bob].status == "unknown"
            assert await changed(watcher) == ("online", "watched")
            await client.away()
            assert await changed(watcher) == ("away", "away")


# Coming back


@on_both_backends()
async def test_after_a_return_it_is_told_what_happened_meanwhile_and_nothing_twice(
    servers: Servers, ann: str, bob: str
) -> None:
    line = Line(servers.first.address)
    still = bob + "-2"
    async with connect(*servers.second.address, uid=still):
        async with connect("-", 1, uid=ann, options=ClientOptions(open_stream=line.open)) as watcher:
            await got_round(watcher, still)
            await watcher.watch([bob, still])
            line.address = ("127.0.0.1", 1)  # nobody
            await line.cut()
            await taken(watcher, Disconnected)
            async with connect(*servers.second.address, uid=bob):
                await anyio.to_thread.run_sync(servers.first.told, bob, 1)
                line.address = servers.second.address
                await taken(watcher, Connected)
                assert await changed(watcher) == ("online", "meanwhile")
            push = await taken(watcher, PresenceChanged)
            assert (push.uid, push.state.status, push.reason) == (bob, "offline", "logout")


@on_both_backends()
async def test_whoever_is_away_stays_so_through_a_lost_connection(
    servers: Servers, ann: str, bob: str
) -> None:
    line = Line(servers.second.address)
    async with connect(*servers.first.address, uid=ann) as watcher:
        await watcher.watch([bob])
        async with connect("-", 1, uid=bob, options=ClientOptions(open_stream=line.open)) as client:
            await client.update(status="away", meta={"status": "asleep"})
            while await changed(watcher) != ("away", "away"):
                pass
            await taken(client, Connected)
            await line.cut()
            assert (await taken(client, Connected)).again
        push = await taken(watcher, PresenceChanged)
        assert (push.state.status, push.reason) == ("offline", "logout")


@pytest.mark.alone
@on_both_backends()
async def test_a_server_that_is_killed_and_started_anew_costs_no_change(ann: str, bob: str) -> None:
    with embedded_redis() as redis:
        with both_ends(redis.url) as (first, second):
            async with connect(*second.address, uid=bob) as client:
                async with connect(*first.address, uid=ann) as watcher:
                    await got_round(watcher, bob)
                    await watcher.watch([bob])
                    first.process.process.kill()
                    await taken(watcher, Disconnected)
                    await client.away()
                    port = str(first.address[1])
                    with running_server("--redis", redis.url, *FLAGS, "--port", port):
                        await taken(watcher, Connected)
                        assert await changed(watcher) == ("away", "meanwhile")
                        await client.back()
                        assert await changed(watcher) == ("online", "back")
                        assert await client.send_message(ann, "welcome back") == 1
                        assert (await taken(watcher, Delivered)).body == "welcome back"
                        await watcher.logout()


@contextmanager
def both_ends(url: str) -> Iterator[tuple[QuickServer, QuickServer]]:
    """Two servers; the first may be killed."""
    with running_server("--redis", url, *FLAGS) as second:
        first = running_server("--redis", url, *FLAGS)
        server = first.__enter__()
        try:
            yield QuickServer(server, url), QuickServer(second, url)
        finally:
            server.stop()


# Messages


@on_both_backends()
async def test_a_message_reaches_every_session_of_the_recipient(servers: Servers, ann: str, bob: str) -> None:
    async with connect(*servers.first.address, uid=ann) as sender:
        async with connect(*servers.first.address, uid=bob, device="desk") as desk:
            async with connect(*servers.second.address, uid=bob, device="phone") as phone:
                await both_are_known(sender, bob)
                for number in range(20):
                    assert await sender.send_message(bob, {"n": number, "raw": b"\0"}) == 2
                for client in (desk, phone):
                    messages = [await taken(client, Delivered)]
                    while messages[-1].body["n"] < 19:
                        messages.append(await taken(client, Delivered))
                    messages = [message for message in messages if message.body["n"] >= 0]
                    assert [message.body["n"] for message in messages] == list(range(20))
                    assert {message.sender for message in messages} == {ann}
                    assert messages[0].body["raw"] == b"\0"


class SlowAnswers(ByteStream):
    """A stream that what the server sends takes a while to pass."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        data = await self._stream.receive(max_bytes)
        await anyio.sleep(1.2)
        return data

    async def send(self, item: bytes) -> None:
        await self._stream.send(item)

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        await self._stream.aclose()


@on_both_backends()
async def test_messages_in_flight_to_a_user_who_returns_arrive_in_order(
    servers: Servers, ann: str, bob: str
) -> None:
    line = Line(servers.first.address)

    async def open_slowly() -> ByteStream:
        return SlowAnswers(await anyio.connect_tcp(*servers.first.address))

    got: list[int] = []
    slow = ClientOptions(open_stream=open_slowly)
    async with connect("-", 1, uid=bob, options=ClientOptions(open_stream=line.open)) as first:
        await got_round(first, bob)
        async with connect("-", 1, uid=ann, options=slow) as sender, anyio.create_task_group() as tasks:
            first.disconnect()
            await anyio.sleep(0.1)
            tasks.start_soon(sender.send_message, bob, 1)  # refused: bob is in the grace
            await anyio.sleep(0.5)
            async with connect(*servers.first.address, uid=bob) as again:
                tasks.start_soon(sender.send_message, bob, 2)  # before ann's client knows of the refusal
                async for push in again.messages():
                    assert isinstance(push, Delivered)
                    got.append(push.body)
                    if len(got) == 2:
                        break
    assert got == [1, 2]


async def both_are_known(sender: Client, uid: str) -> None:
    """Wait until a message reaches two sessions: it takes a moment until Redis has a login."""
    with anyio.fail_after(DEADLINE_S):
        while True:
            try:
                if await sender.send_message(uid, {"n": -1}) == 2:
                    return
            except RecipientOffline:
                pass
            await anyio.sleep(0.05)


# Limits


@on_both_backends()
async def test_a_session_too_many_ends_the_oldest_for_good(servers: Servers, bob: str) -> None:
    async with connect(*servers.first.address, uid=bob, device="first") as oldest:
        await anyio.sleep(0.1)  # which login was the earlier, two nodes know to some hundredths of a second
        async with connect(*servers.second.address, uid=bob, device="second") as second:
            async with connect(*servers.second.address, uid=bob, device="third") as third:
                with pytest.raises(SessionLimit):
                    await ended(oldest)
                assert (second.statistics().losses, third.statistics().losses) == (0, 0)


async def ended(client: Client) -> None:
    with anyio.fail_after(DEADLINE_S):
        async for _ in client:
            pass


# Without an event loop


def test_a_script_watches_is_seen_and_talks(servers: Servers, ann: str, bob: str) -> None:
    with connect_blocking(*servers.first.address, uid=ann) as watcher:
        assert watcher.watch([bob])[bob].status == "offline"
        with connect_blocking(*servers.second.address, uid=bob, meta={"app": "1"}) as client:
            assert isinstance(watcher.receive(DEADLINE_S), Connected)
            seen = [watcher.receive(DEADLINE_S)]
            steps: list[Callable[[], object]] = [
                client.away,
                client.back,
                lambda: client.update(meta={}),
                lambda: client.send_message(ann, "hi"),
            ]
            wait_for(
                lambda: client.query([ann])[ann].status == "online"
            )  # a login takes a moment to get round
            for step in steps:
                step()
                seen.append(watcher.receive(DEADLINE_S))
        seen.append(watcher.receive(DEADLINE_S))
        assert [describe(push) for push in seen] == [
            ("online", "login", {"app": "1"}),
            ("away", "away", {"app": "1"}),
            ("online", "back", {"app": "1"}),
            ("online", "updated", {}),
            (bob, "hi", {}),
            ("offline", "logout", {}),
        ]
        assert watcher.watched[bob].status == "offline"
        watcher.unwatch([bob])
        assert watcher.watched == {}
        watcher.watch_nowait([bob])
        assert describe(watcher.receive(DEADLINE_S)) == ("offline", "watched", {})


def describe(push: Push) -> tuple[str, str, dict[str, object]]:
    if isinstance(push, PresenceChanged):
        return push.state.status, push.reason, dict(push.state.meta)
    assert isinstance(push, Delivered)
    return push.sender, push.body, {}
