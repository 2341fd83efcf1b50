"""What sessions say of themselves and change while they live, on a real server."""

import contextlib
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from presence import protocol
from presence.client import connect_blocking
from presence.reader import PresenceReader
from presence.store.embedded import EmbeddedRedis
from presence.subscriber import Offline, Online, Updated, subscribe_sync
from tests.support.phone import Phone
from tests.support.preloaded import PreloadedServer
from tests.support.waiting import wait_for

PUSH = {"push": "token of this phone", "raw": b"\0\xff"}
FLAGS = ("--idle-timeout", "2", "--tick", "0.2", "--disconnect-grace", "0.2", "--min-idle-timeout", "1")


def test_private_is_for_the_backend_and_the_offline_event_has_it(redis_server: EmbeddedRedis) -> None:
    with (
        PreloadedServer("--redis", redis_server.url, *FLAGS) as server,
        PresenceReader(redis_server.url) as reader,
        subscribe_sync(redis_server.url, after="0", updates=True) as events,
    ):
        with (
            connect_blocking(*server.address, uid="bob") as bob,
            connect_blocking(*server.address, uid="ann", meta={"app": "1"}, private=PUSH) as ann,
        ):
            wait_for(lambda: reader.state("ann").get("private") == PUSH)
            assert bob.query(["ann"])["ann"].meta == {"app": "1"}
            until = datetime.now(UTC) + timedelta(seconds=1)
            ann.update(status="dnd", until=until)
            wait_for(lambda: bob.query(["ann"])["ann"].status == "dnd")
            wait_for(lambda: bob.query(["ann"])["ann"].status == "online")
            ann.disconnect()
        seen: list[Any] = []
        while not any(isinstance(each, Offline) and each.uid == "ann" for each in seen):
            seen += filter(None, [events.poll()])  # waits for a second at most
        online, busy, back, offline = (each for each in seen if each.uid == "ann")
        assert isinstance(online, Online)
        assert (isinstance(busy, Updated), busy.status) == (True, "dnd")
        assert (isinstance(back, Updated), back.status) == (True, "online")
        assert -1 <= back.at_ms - until.timestamp() * 1000 <= 2000
        for each in (online, busy, back, offline):
            assert (each.meta, each.private) == ({"app": "1"}, PUSH)


def test_events_have_the_address_where_a_setting_asks_for_it(redis_server: EmbeddedRedis) -> None:
    with (
        PreloadedServer("--redis", redis_server.url, *FLAGS, "--event-address") as server,
        subscribe_sync(redis_server.url, after="0") as events,
    ):
        with connect_blocking(*server.address, uid="ann", meta={"app": "1"}) as ann:
            ann.update(status="busy")
        seen: list[Any] = []
        while len(seen) < 2:
            seen += filter(None, [events.poll()])
        assert [(type(each), each.address, each.meta) for each in seen] == [
            (Online, "127.0.0.1", {"app": "1"}),
            (Offline, "127.0.0.1", {"app": "1"}),
        ]


def test_a_silence_is_reported_by_the_idle_timeout_in_force(redis_server: EmbeddedRedis) -> None:
    with (
        PreloadedServer("--redis", redis_server.url, *FLAGS) as server,
        subscribe_sync(redis_server.url, after="0") as events,
        contextlib.ExitStack() as stack,
    ):
        granted = {}
        for uid, wish in {"longer": 6.0, "shorter": 1.0, "same": 2.0}.items():
            phone = stack.enter_context(contextlib.closing(Phone(server.address)))
            phone.send(protocol.encode(protocol.login(uid, id=1)))
            phone.send(protocol.encode(protocol.update(id=2, idle_timeout=wish)))
            granted[uid] = wish, time.time()
        took: dict[str, float] = {}
        while len(took) < len(granted):
            for event in filter(None, [events.poll()]):
                if isinstance(event, Offline):
                    assert event.reason == "idle_timeout"
                    took[event.uid] = event.at_ms / 1000 - granted[event.uid][1]
    for uid, (wish, _) in granted.items():
        assert wish - 0.05 <= took[uid] <= wish + 1.0, took
