"""Rooms inside ``presence serve``: a server whose setting allows them runs the projector and reports it."""

import json

import trio

from presence import protocol
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import Redis
from tests.rooms.world import World
from tests.server.test_server import served
from tests.support.server_process import running_server
from tests.support.waiting import wait_for

DEADLINE_S = 40.0


def test_a_server_with_rooms_keeps_their_members_and_reports_on_it(
    module_redis: EmbeddedRedis, client: Redis
) -> None:
    world = World(client, module_redis.url, 1)
    with running_server("--redis", module_redis.url, "--rooms", "open", "--shards", "1") as server:
        wait_for(lambda: client.exists(world.keys.rooms_state(0)), DEADLINE_S)
        world.put("ann", "lobby")
        wait_for(lambda: world.members("lobby"), DEADLINE_S)
    report = server.report["rooms"]
    assert (report["joined"], report["occupied"], report["failures"]) == (1, 1, 0)
    assert json.dumps(report)


def test_without_rooms_no_projector_runs(module_redis: EmbeddedRedis, client: Redis) -> None:
    with running_server("--redis", module_redis.url) as server:
        pass
    assert "rooms" not in server.report
    assert not client.keys("*:rooms:state")


async def test_changes_gather_briefly_while_a_session_is_in_a_room(module_redis: EmbeddedRedis) -> None:
    async with served(module_redis, rooms="open") as (server, address):
        assert not server.node.relay.is_hurried()
        async with await trio.open_tcp_stream(*address) as stream:
            await stream.send_all(protocol.encode(protocol.login("ann", rooms=["lobby"])))
            assert await stream.receive_some(4096)
            assert server.node.relay.is_hurried()
            await stream.send_all(protocol.encode(protocol.logout()))
            while await stream.receive_some(4096):
                pass
        assert not server.node.relay.is_hurried()
