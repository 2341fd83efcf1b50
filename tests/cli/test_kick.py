"""``presence kick`` against real scripts, and against a real server."""

import json
import time
from contextlib import closing
from typing import Any

import pytest
import structlog
import trio

from presence.common.clock import Clock
from presence.config.settings import Settings
from presence.ops.kick import request_kick
from presence.protocol import Code
from presence.server.server import Server
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import Redis
from presence.store.script_runner import Scripting
from tests.cli.conftest import Command
from tests.server.test_control_listener import serving
from tests.store.driving import Hand, events, login, record
from tests.support.waiting import until
from tests.transports.harness import Client

pytestmark = pytest.mark.usefixtures("clean_environment")


async def test_a_kick_ends_all_sessions_of_a_user_for_good(
    redis_server: EmbeddedRedis, command: Command, client: Redis
) -> None:
    server = Server(Settings(port=0), redis_server.url, 10, Clock())
    async with trio.open_nursery() as nursery:
        address = await nursery.start(server.serve)
        devices = [Client(await trio.open_tcp_stream(*address)) for _ in range(3)]
        for device, uid, name in zip(devices, ("ann", "ann", "bob"), ("phone", "tv", "tv"), strict=True):
            await device.login(uid, name)
        with trio.fail_after(5):
            while client.hlen("presence:{0}:online") < 2:  # noqa: ASYNC110 - Redis sends no notification
                await trio.sleep(0.01)
        started = time.monotonic()
        with structlog.testing.capture_logs() as logs:
            result = await trio.to_thread.run_sync(command, "kick", "ann", "cyd")
        took_s = time.monotonic() - started
        goodbyes = [packet.payload for device in devices[:2] for packet in await device.rest()]
        for device in devices:
            await device.stream.aclose()
        nursery.cancel_scope.cancel()
    assert took_s < 1
    logged = [line for line in logs if line["event"] == "session kicked"]
    assert {(line["uid"], line["device"]) for line in logged} == {("ann", "phone"), ("ann", "tv")}
    assert all("@" in line["by"] and line["by"].endswith(" (presence kick)") for line in logged)
    assert [(goodbye["code"], goodbye["reconnect"]) for goodbye in goodbyes] == [(Code.KICKED, False)] * 2
    assert record(client, "bob") is not None
    (offline,) = [event for event in events(client) if event["type"] == "offline"]
    assert (offline["uid"], offline["code"], offline["reason"]) == ("ann", "301", "kicked")
    assert result.status == 0
    assert "ann  2 sessions ended\ncyd  offline\n" in result.out
    assert "no ban" in result.err


def test_a_node_that_does_not_answer_is_named(command: Command, client: Redis, hand: Hand) -> None:
    hand.apply(login("ann", "s1", "phone"), login("ann", "s2"), login("bob", "s3"))
    status, out, err = command("kick", "ann", "--wait", "0.05")
    assert (status, out) == (1, "ann  0 of 2 sessions ended\n")
    assert "presence: ann (phone): n1 did not end it within 0.05 s" in err
    inbox: Any = client.hget("presence:{0}:node:n1", "inbox")
    assert sorted((news["type"], news["session"]) for news in json.loads(inbox)) == [
        *(("kicked", "s1"), ("kicked", "s2"))
    ]


@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "lease ended"])
def test_sessions_of_a_silent_node_are_left_to_its_sweep(
    command: Command, client: Redis, hand: Hand, *, fenced: bool
) -> None:
    hand.apply(login("ann", "s1"))
    if fenced:
        client.hset("presence:{0}:node:n1", "fence", 1)
    else:
        client.zadd("presence:nodes", {"n1": 1})
    wait_s = "60" if fenced else "0"  # the command does not wait for a node that cannot be notified
    status, out, err = command("kick", "ann", "--json", "--wait", wait_s)
    left = {"device": "", "session": "s1", "node": "n1", "reason": "node_silent"}
    assert (status, json.loads(out)) == (1, {"ann": {"sessions": 1, "left": [left]}})
    assert "presence: ann: n1 is silent: its sweep will end the session" in err


def test_a_session_that_began_after_the_kick_is_not_waited_for(
    command: Command, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.apply(login("ann", "s1"))
    monkeypatch.setattr(time, "sleep", lambda _s: hand.apply(login("ann", "s2")))
    assert command("kick", "ann").status == 0


async def test_the_caller_name_in_the_log_is_shortened_and_printable(
    redis_server: EmbeddedRedis, client: Redis
) -> None:
    async with serving(redis_server) as pair:
        await until(lambda: pair.is_subscribed(0))
        session = await pair.log_in(0)
        assert session
        by = "\x1b[2J" + 1000 * "x"
        with structlog.testing.capture_logs() as logs, closing(Scripting(redis_server.url)) as scripting:
            await trio.to_thread.run_sync(lambda: request_kick(scripting, Keys(), ["ann"], by=by))
            await until(lambda: any(line["event"] == "session kicked" for line in logs))
    (by,) = [line["by"] for line in logs if line["event"] == "session kicked"]
    assert by.startswith("\\u{1b}[2Jx")
    assert len(by) < 250
