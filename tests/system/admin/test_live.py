"""`/v1/live`: one picture for all viewers, and none of them waits for another."""

import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing

from presence.admin import sampler, sse
from presence.admin.http_metrics import HttpMetrics
from presence.admin.sse import ViewerMailbox
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import Redis, open_client
from presence.subscriber import follower
from tests.admin.asking import Viewer, operators
from tests.subscriber.streams import Streams
from tests.support.waiting import until

SECONDS = 2


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[Redis]:
    with open_client(redis_server.url) as client:
        yield client


async def drained(viewer: Viewer, into: list[dict[str, str]]) -> None:
    while True:
        into.append(await viewer.message())


async def picture(viewer: Viewer) -> Any:
    return json.loads((await viewer.message("sample"))["data"])


async def test_who_looks_is_greeted_and_sees_the_figures_of_all_workers(redis_server: EmbeddedRedis) -> None:
    async with operators(redis_server.url, workers=3, idle_timeout=12) as running:
        running.samples[2] = None
        sampler = running.app.sources.sampler
        await until(lambda: len(sampler.history.report()["history"]["points"]) >= 2)
        viewer = running.look("/v1/live")
        hello = json.loads((await viewer.message("hello"))["data"])
        told = [hello[name] for name in ("workers", "acts", "idle_timeout_s", "slot_s")]
        assert told == [3, True, 12, 0.5]
        assert len(hello["history"]["points"]) >= 2
        assert {len(point) for point in hello["history"]["points"]} == {8}
        await until(lambda: sampler.cluster.nodes is not None)
        seen = await picture(viewer)
        while seen["redis"] is None or seen["online"] is None:
            seen = await picture(viewer)
        assert seen["sessions"] == 1 + 2
        assert [each["answering"] for each in seen["workers"]] == [True, True, False]
        assert seen["wheel"] == {"slot_s": 0.5, "next_s": 0.1, "sizes": [2, 6, 0], "later": 4}
        assert seen["delays"]["counts"] == [6, 4, 2]
        assert (seen["online"], seen["redis"]["status"], seen["nodes"]) == (0, "ok", [])


async def test_viewers_and_scrapes_share_one_question_a_second(redis_server: EmbeddedRedis) -> None:
    async with operators(redis_server.url) as running, trio.open_nursery() as nursery:
        viewers = [running.look("/v1/live") for _ in range(50)]
        seen: list[list[dict[str, str]]] = [[] for _ in viewers]
        for viewer, told in zip(viewers, seen, strict=True):
            nursery.start_soon(drained, viewer, told)
        await until(lambda: all(seen))
        before, started = running.asked["sample"], trio.current_time()
        async with trio.open_nursery() as scraping:
            for _ in range(20):
                scraping.start_soon(running.ask, "/metrics")
        await trio.sleep(SECONDS)
        asked, took_s = running.asked["sample"] - before, trio.current_time() - started
        nursery.cancel_scope.cancel()
    assert asked <= took_s + 2


async def test_transitions_come_in_few_messages(
    redis_server: EmbeddedRedis, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "BLOCK_MS", 50)
    streams = Streams(client)
    async with operators(redis_server.url) as running:
        viewer = running.look("/v1/live")
        await viewer.message("hello")
        await until(lambda: running.app.sources.broadcaster.positions is not None)
        streams.write(*(f"u{number}" for number in range(500)))
        told, skipped, shown = 0, 0, []
        while told + skipped < 500:
            each = json.loads((await viewer.message("transitions"))["data"])
            assert len(each["events"]) <= 50
            told, skipped = told + len(each["events"]), skipped + each["skipped"]
            shown += [event["uid"] for event in each["events"]]
        assert shown[-1] == "u499"
        assert running.context.http.missed == skipped


async def test_a_viewer_who_takes_nothing_holds_up_nobody(redis_server: EmbeddedRedis) -> None:
    async with operators(redis_server.url) as running:
        stuck, other = running.look("/v1/live"), running.look("/v1/live")
        moments = [(await picture(other))["at_ms"] for _ in range(4)]
        assert max(b - a for a, b in itertools.pairwise(moments)) < 3000
        await stuck.message("hello")
        latest = (await picture(stuck))["at_ms"]  # what he had not taken was replaced, but for one
        assert latest <= moments[-1]
        assert (await picture(stuck))["at_ms"] >= moments[-1]


class PageEvent(NamedTuple):
    data: bytes


async def test_a_mailbox_keeps_the_newest(autojump_clock: trio.testing.MockClock) -> None:
    metrics = HttpMetrics()
    mailbox = ViewerMailbox(metrics)
    for number in range(70):
        mailbox.put_event(PageEvent(b'{"n":%d}' % number))
    mailbox.put_snapshot(b"old")
    mailbox.put_snapshot(b"new")
    messages = mailbox.messages()
    assert await anext(messages) == b"new"
    events = json.loads((await anext(messages)).partition(b"data: ")[2])
    assert [each["n"] for each in events["events"]] == list(range(20, 70))
    assert events["skipped"] == metrics.missed == 20
    started = trio.current_time()
    assert await anext(messages) == sse.HEARTBEAT
    assert trio.current_time() - started == pytest.approx(sse.HEARTBEAT_INTERVAL_S)
    mailbox.put_event(PageEvent(b"{}"))
    await anext(messages)
    started = trio.current_time()
    mailbox.put_event(PageEvent(b"{}"))
    await anext(messages)
    assert trio.current_time() - started == pytest.approx(sse.EVENTS_INTERVAL_S)
    await messages.aclose()


async def test_a_worker_of_unknown_form_does_not_end_the_page(redis_server: EmbeddedRedis) -> None:
    async with operators(redis_server.url) as running:
        viewer = running.look("/v1/live")
        await picture(viewer)
        running.samples[0] = {"wheel": {"sizes": ["many"], "slot_s": 1, "next_s": 0}}
        await trio.sleep(2 * sampler.SAMPLE_INTERVAL_S)
        running.samples[0] = {"sessions": 77}
        while (await picture(viewer))["sessions"] != 77:
            pass
