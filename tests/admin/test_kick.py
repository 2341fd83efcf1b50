"""A kick over HTTP, against a real server: of a whole user, and of one of his devices."""

import threading

import pytest
import trio

from presence.admin import views
from presence.clock import Clock
from presence.embedded import EmbeddedRedis
from presence.kicking import Kicked
from presence.server import Server
from presence.settings import Settings
from presence.store.client import open_client
from protocol import Code
from tests.admin.asking import operators
from tests.store.driving import events
from tests.transports.harness import Client


async def test_a_kick_ends_one_device_or_all(redis_server: EmbeddedRedis) -> None:
    server = Server(Settings(port=0), redis_server.url, 10, Clock())
    async with operators(redis_server.url) as running, trio.open_nursery() as nursery:
        address = await nursery.start(server.serve)
        phone, tv, plain = [Client(await trio.open_tcp_stream(*address)) for _ in range(3)]
        await phone.login("ann", "phone")
        await tv.login("ann", "tv")
        await plain.login("ann")
        with trio.fail_after(30):
            while len((await running.ask("/v1/presence/ann")).json()["sessions"]) < 3:  # noqa: ASYNC110 - Redis rings no bell
                await trio.sleep(0.01)
        told = await running.ask("/v1/kick", "POST", {"uid": "ann", "device": "phone"})
        assert (told.status, told.json()) == (200, {"uid": "ann", "sessions": 1, "left": []})
        assert [packet.payload["code"] for packet in await phone.rest()] == [Code.KICKED]
        told = await running.ask("/v1/kick", "POST", {"uid": "ann", "device": ""})
        assert told.json()["sessions"] == 1
        assert [packet.payload["code"] for packet in await plain.rest()] == [Code.KICKED]
        state = (await running.ask("/v1/presence/ann")).json()
        assert [each["device"] for each in state["sessions"]] == ["tv"]
        told = await running.ask("/v1/kick", "POST", {"uid": "ann"})
        assert told.json() == {"uid": "ann", "sessions": 1, "left": []}
        assert [packet.payload["reconnect"] for packet in await tv.rest()] == [False]
        for device in (phone, tv, plain):
            await device.stream.aclose()
        nursery.cancel_scope.cancel()
    with open_client(redis_server.url) as client:
        kicked = [event for event in events(client) if event["type"] == "offline"]
    assert [(event["uid"], event["code"]) for event in kicked] == [("ann", str(int(Code.KICKED)))]


async def test_one_kick_too_many_is_told_so(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()

    def wait(*_: object, **__: object) -> Kicked:
        ends.wait(30)
        return Kicked([], {})

    monkeypatch.setattr(views, "kick", wait)
    async with operators(redis_server.url) as running, trio.open_nursery() as nursery:
        limiter = running.app.sources.views._acting
        for _ in range(views.ACTING_THREADS):
            nursery.start_soon(running.ask, "/v1/kick", "POST", {"uid": "ann"})
        with trio.fail_after(30):
            while limiter.available_tokens:  # noqa: ASYNC110 - nobody rings a bell for it
                await trio.sleep(0.01)
        told = await running.ask("/v1/kick", "POST", {"uid": "ann"})
        assert (told.status, told.code) == (503, "busy")
        ends.set()
