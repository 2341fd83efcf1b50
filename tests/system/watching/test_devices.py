"""Devices of users, on a real server with two workers: their states in queries, and limits by class."""

from collections.abc import Iterator
from functools import partial

import pytest

from loadtest.servers import PresenceServer
from presence import protocol
from presence.client import LimitReached, PresenceChanged, connect_blocking
from presence.protocol import Code, Kind
from presence.reader import PresenceReader
from presence.subscriber import Device, Offline, Online, subscribe_sync
from tests.support.line import Line
from tests.support.preloaded import PreloadedServer
from tests.support.waiting import wait_for

FLAGS = (
    "--workers",
    "2",
    "--class-sessions",
    "phone=1,web=1:newest",
    "--max-sessions",
    "64",
    "--device-events",
)


@pytest.fixture(scope="module")
def server() -> Iterator[PresenceServer]:
    with PreloadedServer(*FLAGS) as server:
        yield server


def test_a_query_with_detail_shows_each_device_and_none_of_an_invisible_user(server: PresenceServer) -> None:
    with (
        connect_blocking(*server.address, uid="asking-1") as asking,
        connect_blocking(*server.address, uid="ann", device="desk", device_class="desktop", meta={"v": 1}),
        connect_blocking(*server.address, uid="ann", status="away") as phone,
    ):

        def devices() -> list[tuple[str, str, str | None, dict[str, int]]]:
            state = asking.query(["ann"], detail=True)["ann"]
            assert state.devices is not None
            assert all(abs(each.since_ms - (state.since_ms or 0)) < 10_000 for each in state.devices)
            return [(each.device, each.status, each.device_class, dict(each.meta)) for each in state.devices]

        both = [("", "away", None, {}), ("desk", "online", "desktop", {"v": 1})]
        wait_for(lambda: devices() == both)
        assert asking.query(["ann"])["ann"].devices is None
        with PresenceReader(server.redis_url) as reader:
            assert [each.get("class") for each in reader.state("ann")["sessions"]] == [None, "desktop"]
        phone.update(status="invisible")
        wait_for(lambda: asking.query(["ann"])["ann"].status == "offline")
        assert devices() == []
        assert asking.query(["nobody"], detail=True)["nobody"].devices == ()


def test_an_answer_that_does_not_fit_is_refused(server: PresenceServer) -> None:
    uids, devices = [f"crowd{n}" for n in range(125)], 8
    meta = {"text": 240 * "x"}  # of all devices of a user within DEVICES_META_MAX_BYTES
    lines = [
        Line(server.address, protocol.login(uid, device=f"d{n}", meta=meta))
        for uid in uids
        for n in range(devices)
    ]
    with connect_blocking(*server.address, uid="asking-2") as asking:
        wait_for(lambda: len(asking.query([uids[-1]], detail=True)[uids[-1]].devices or ()) == devices)
        with pytest.raises(LimitReached):
            asking.query(uids, detail=True)
        assert {each.status for each in asking.query(uids).values()} == {"online"}
    for line in lines:
        line.close()


def test_one_more_session_of_a_class_replaces_the_oldest_or_is_refused(server: PresenceServer) -> None:
    with subscribe_sync(server.redis_url, after="0") as events:
        first, second = two_sessions(server, "bob", "phone")
        ended = wait_for_end(first)
        assert ended == Code.SESSION_LIMIT
        second.ask(protocol.logout())
        seen = [event for event in iter(events.poll, None) if getattr(event, "uid", "") == "bob"]
        assert [type(each) for each in seen] == [Online, Offline]
        assert {getattr(each, "device_class", "") for each in seen} == {"phone"}
    webs = two_sessions(server, "cyd", "web")
    # On the worker of the first the second is refused; on the other one it ends as soon as Redis knows both.
    refused = webs[1].answer.kind == Kind.ERROR
    code = webs[1].answer.payload["code"] if refused else wait_for_end(webs[1])
    assert code == Code.SESSION_LIMIT
    assert webs[0].ask(protocol.query(["cyd"])).kind == Kind.OK
    for line in (first, second, *webs):
        line.close()


def test_who_asks_is_told_of_each_device_that_comes_and_goes(server: PresenceServer) -> None:
    told: list[tuple[str, list[tuple[str, str | None]] | None]] = []
    with (
        connect_blocking(*server.address, uid="asking-3", watch_devices=True) as asking,
        connect_blocking(*server.address, uid="plain") as plain,
        subscribe_sync(server.redis_url, after="0", updates=True) as events,
    ):
        assert asking.watch(["eve"])["eve"].devices == ()
        assert plain.watch(["eve"])["eve"].devices is None

        def wait_for_push(name: str) -> None:
            while not told or told[-1][0] != name:
                push = asking.receive(10)
                if isinstance(push, PresenceChanged):
                    devices = push.state.devices
                    shown = devices and [(each.device, each.device_class) for each in devices]
                    told.append((push.reason, list(shown or ())))

        with connect_blocking(*server.address, uid="eve", device="desk"):
            wait_for_push("login")
            phone = Line(server.address, protocol.login("eve", device="phone", device_class="tv"))
            told.clear()
            wait_for_push("login")
            assert told == [("login", [("desk", None), ("phone", "tv")])]
            phone.ask(protocol.logout())
            phone.close()
            wait_for_push("logout")
            assert told[1:] == [("logout", [("desk", None)])]
            state = asking.query(["eve"])["eve"]
            assert (state.id, state.status) == (asking.watched["eve"].id, "online")
        told.clear()
        wait_for_push("logout")
        assert told == [("logout", [])]
        # Who does not ask is told of the user only.
        pushed: list[PresenceChanged] = []
        while not pushed or pushed[-1].reason != "logout":
            if isinstance(push := plain.receive(10), PresenceChanged):
                pushed.append(push)
        assert [(each.reason, each.state.devices) for each in pushed] == [("login", None), ("logout", None)]
        seen = [each for each in iter(events.poll, None) if getattr(each, "uid", "") == "eve"]
        assert [type(each) for each in seen] == [Online, Device, Device, Offline]
        came, went = (each for each in seen if isinstance(each, Device))
        assert (came.came, came.device, came.device_class, came.devices) == (
            True,
            "phone",
            "tv",
            ("desk", "phone"),
        )
        assert (went.came, went.device, went.reason, went.devices) == (False, "phone", "logout", ("desk",))


def two_sessions(server: PresenceServer, uid: str, device_class: str) -> tuple[Line, Line]:
    """Log in twice, and the second time when Redis knows the first: else either may come first."""
    login = partial(protocol.login, uid, device_class=device_class)
    first = Line(server.address, login(device="a"))
    wait_for(lambda: first.ask(protocol.query([uid])).payload["presence"][uid]["status"] == "online")
    return first, Line(server.address, login(device="b"))


def wait_for_end(line: Line) -> int:
    """Return the code with which the server ends a connection."""
    try:
        while True:
            line.pushed.append(line.read(10))
    except ConnectionError:
        return int(line.pushed[-1].payload["code"])
