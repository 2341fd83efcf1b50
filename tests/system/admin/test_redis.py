"""Redis away: requests are refused in time, and those that need no Redis are answered; and a cluster."""

import json
import signal
from collections.abc import Iterator

import pytest
import trio

from presence.store.embedded import EmbeddedRedis, embedded_redis
from presence.store.redis_client import open_client
from presence.store.shard_clients import ShardClients
from presence.subscriber import follower
from tests.admin.asking import ANSWER_S, Operators, operators
from tests.subscriber.streams import Streams
from tests.support.redis_cluster import Cluster
from tests.support.waiting import until

REDIS_S = 2.0
SLACK_S = 5.0  # of a slow and busy machine
USERS = [f"u{number}" for number in range(60)]
NEEDS_REDIS = [
    ("/v1/presence/ann", "GET", b""),
    ("/v1/presence/query", "POST", {"uids": ["ann"]}),
    ("/v1/online", "GET", b""),
    ("/v1/online?limit=0", "GET", b""),
    ("/v1/nodes", "GET", b""),
    ("/v1/events", "HEAD", b""),
    ("/v1/events?from=0", "HEAD", b""),
    ("/v1/kick", "POST", {"uid": "ann"}),
    ("/v1/message", "POST", {"from": "@shop", "to": "ann", "body": 1}),
]


@pytest.fixture(params=["hangs", "is gone"])
def away(request: pytest.FixtureRequest) -> Iterator[tuple[EmbeddedRedis, signal.Signals]]:
    with embedded_redis() as server:
        yield server, signal.SIGSTOP if request.param == "hangs" else signal.SIGKILL
        server.process.send_signal(signal.SIGCONT)


async def refusals(running: Operators) -> None:
    for target, method, body in NEEDS_REDIS:
        started = trio.current_time()
        answered = await running.ask(target, method, body)
        took_s = trio.current_time() - started
        assert answered.status == 503, f"{method} {target}: {answered.status}"
        if method != "HEAD":
            assert answered.json()["error"]["retry_after"] == int(answered.headers["retry-after"])
        assert took_s < REDIS_S + SLACK_S, target


async def metrics_say(running: Operators, line: bytes) -> None:
    with trio.fail_after(REDIS_S + SLACK_S):
        while line not in (await running.ask("/metrics")).body:  # noqa: ASYNC110 - nobody rings a bell for it
            await trio.sleep(0.05)


async def test_who_needs_redis_is_refused_in_time_and_health_is_told(
    away: tuple[EmbeddedRedis, signal.Signals],
) -> None:
    server, order = away
    async with operators(server.url) as running:
        assert (await running.ask("/v1/online?limit=0")).json()["count"] == 0
        await metrics_say(running, b"presence_redis_up 1")
        server.process.send_signal(order)
        await refusals(running)
        await metrics_say(running, b"presence_redis_up 0")  # it may refuse before the sampler asks again
        for target in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
            started = trio.current_time()
            assert (await running.ask(target)).status == 200
            assert trio.current_time() - started < REDIS_S
        await until(lambda: (running.app.sources.sampler.redis_map() or {}).get("status") == "away")
        explained = (await running.ask("/v1/explain/ann")).json()
        assert explained["redis"]
        viewer = running.look("/v1/live")
        assert b'"status":"away"' in (await viewer.message("sample"))["data"].encode()


async def test_many_who_wait_take_few_threads(away: tuple[EmbeddedRedis, signal.Signals]) -> None:
    server, order = away
    async with operators(server.url) as running:
        await running.ask("/v1/online?limit=0")
        server.process.send_signal(order)
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(running.ask, "/v1/online")
        took_s = trio.current_time() - started
        assert took_s < REDIS_S + SLACK_S
        assert running.context.http.requests["/v1/online", "5xx"] == 100


async def test_an_event_stream_goes_on_when_redis_is_back(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "BLOCK_MS", 50)
    with open_client(redis_server.url) as client:
        streams = Streams(client)
        async with operators(redis_server.url) as running:
            viewer = running.look("/v1/events")
            await until(lambda: running.app.sources.broadcaster.positions is not None)
            client.client_kill_filter(_type="normal", skipme=True)
            streams.write("ann")
            assert (await viewer.message())["event"] == "online"


async def test_a_worker_that_says_nothing_is_told(redis_server: EmbeddedRedis) -> None:
    async with operators(redis_server.url, workers=2) as running:
        assert (await running.ask("/readyz")).status == 200
        running.samples[1] = None
        wanted = {"status": "not_ready", "workers": {"1": "ready", "2": "no_answer"}}
        # The round of the live page may have begun before, and writing the traceback takes a while.
        with trio.fail_after(ANSWER_S):
            while (answered := await running.ask("/readyz")).json() != wanted:
                pass
        assert answered.status == 503
        assert (await running.ask("/healthz")).status == 200  # it has only just begun to say nothing
        running.app.sources.workers.answered_at[2] = trio.current_time() - 11
        health = await running.ask("/healthz")
        assert (health.status, health.json()["status"]) == (503, "failing")


async def test_a_user_without_the_rights_to_follow_streams(redis_server: EmbeddedRedis) -> None:
    rules = ["on", ">secret-of-redis-0123", "~presence:*", "&presence:*", "+@all", "-xread", "-xrevrange"]
    with open_client(redis_server.url) as client:
        Streams(client)
        client.execute_command("ACL", "SETUSER", "few", *rules)
    url = redis_server.url.replace("://", "://few:secret-of-redis-0123@")
    async with operators(url) as running:
        refused = await running.ask("/v1/events")
        assert (refused.status, refused.code) == (503, "redis_refused")
        assert "xrevrange" in refused.json()["error"]["message"]
        assert (await running.ask("/v1/online")).status == 200
        viewer = running.look("/v1/live")
        assert (await viewer.message("sample"))["event"] == "sample"


async def test_events_of_all_primaries_and_how_they_are(redis_cluster: Cluster) -> None:
    with ShardClients(redis_cluster.url) as access:
        streams = Streams(access, 16)
        streams.write(*USERS[:20])
        async with operators(redis_cluster.url) as running:
            viewer = running.look("/v1/events?from=0")
            seen = [await viewer.message() for _ in range(20)]
            viewer.leave()
            streams.write(*USERS[20:])
            viewer = running.look("/v1/events", last_event_id=seen[-1]["id"])
            seen += [await viewer.message() for _ in range(40)]
            assert sorted(json.loads(each["data"])["uid"] for each in seen) == sorted(USERS)
            viewer.leave()
            assert (await running.ask("/v1/online")).json()["count"] == 0
            await until(lambda: running.app.sources.sampler.cluster.redis is not None)
            redis = running.app.sources.sampler.cluster.redis
            assert redis is not None
            assert (redis.status, redis.servers, redis.shards) == ("ok", 3, 16)
