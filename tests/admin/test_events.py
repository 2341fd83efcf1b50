"""`/v1/events`: no event is lost or repeated, even after reconnects and with slow viewers."""

import json
from collections.abc import Iterator

import pytest
import trio

from presence.admin import broadcast, event_feed, sse
from presence.admin.history import PAGE_EVENTS, EventHistory
from presence.admin.responses import ApiError
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import Redis, open_client
from presence.subscriber import follower
from presence.subscriber.events import Entry
from tests.admin.asking import Viewer, operators
from tests.subscriber.streams import Streams
from tests.support.waiting import until

USERS = [f"u{number}" for number in range(200)]


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten reads that find nothing."""
    monkeypatch.setattr(follower, "BLOCK_MS", 50)


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[Redis]:
    with open_client(redis_server.url) as client:
        yield client


@pytest.fixture(params=[1, 16], ids=["S=1", "S=16"])
def streams(request: pytest.FixtureRequest, client: Redis) -> Streams:
    return Streams(client, request.param)


@pytest.fixture
def url(redis_server: EmbeddedRedis) -> str:
    return redis_server.url


async def take(viewer: Viewer, count: int) -> tuple[list[str], str]:
    """Take that many events; return the users, and the last id."""
    uids, last = [], ""
    for _ in range(count):
        event = await viewer.message()
        uids.append(json.loads(event["data"])["uid"])
        last = event["id"]
    return uids, last


async def test_a_viewer_gets_new_events_only(streams: Streams, url: str) -> None:
    streams.write("before")
    async with operators(url) as running:
        viewer = await running.looking("/v1/events")
        streams.write("ann", "bob")
        streams.write("ann", kind="offline")
        uids, _ = await take(viewer, 3)
        assert sorted(uids[:2]) == ["ann", "bob"]
        assert uids[2] == "ann"


async def test_a_viewer_that_reconnects_gets_every_event_once(streams: Streams, url: str) -> None:
    async with operators(url) as running:
        seen: list[str] = []
        viewer = await running.looking("/v1/events")
        written = list(USERS)
        streams.write(*written[:50])
        last, turns = "", 0
        while len(seen) < len(written):
            some, last = await take(viewer, min(17, len(written) - len(seen)))
            seen += some
            viewer.leave()
            turns += 1
            if turns == 2:
                streams.write(*written[50:])  # while no viewer is connected
            viewer = running.look("/v1/events", last_event_id=last)
        assert sorted(seen) == sorted(written)
        await until(lambda: sum(running.context.http.viewers.values()) <= 1)
        streams.write("the last")
        assert (await take(viewer, 1))[0] == ["the last"]
        viewer.leave()


async def test_new_events_arrive_while_history_is_read(streams: Streams, url: str) -> None:
    streams.write(*USERS)
    async with operators(url) as running:
        other = await running.looking("/v1/events")  # so that the stream is read all the time
        viewer = running.look("/v1/events?from=0")
        seen, _ = await take(viewer, 20)
        more = [f"later{number}" for number in range(30)]
        streams.write(*more)
        seen += (await take(viewer, len(USERS) + len(more) - 20))[0]
        assert sorted(seen) == sorted([*USERS, *more])
        assert sorted((await take(other, len(more)))[0]) == sorted(more)


async def test_a_viewer_too_slow_for_the_queue_falls_back_to_history_and_misses_nothing(
    streams: Streams, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "QUEUE_EVENTS", 10)
    async with operators(url) as running:
        slow, quick = [await running.looking("/v1/events") for _ in range(2)]
        for first in range(0, len(USERS), 5):
            streams.write(*USERS[first : first + 5])
            await take(quick, 5)  # not delayed
        seen, _ = await take(slow, len(USERS))
        assert sorted(seen) == sorted(USERS)


async def test_a_page_of_history_is_bounded_over_all_shards(streams: Streams, url: str) -> None:
    streams.write(*(f"u{number}" for number in range(2000)))
    pages = EventHistory(url, "presence")
    page = await pages.page(dict.fromkeys(range(streams.keys.shards), "0-0"))
    assert 0 < len(page.items) <= PAGE_EVENTS
    assert page.is_complete
    pages.close()


async def test_a_filter_passes_its_type_and_the_position_advances(
    streams: Streams, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "HEARTBEAT_INTERVAL_S", 0.2)
    async with operators(url) as running:
        viewer = await running.looking("/v1/events?type=offline")
        streams.write("ann", kind="offline")
        streams.write("ann", "bob")
        event = await viewer.message()
        assert (event["event"], json.loads(event["data"])["uid"]) == ("offline", "ann")
        place = event_feed.parse_position(event["id"])
        with trio.fail_after(30):
            while b"id: " not in viewer._rest.rpartition(b":\n")[2]:
                viewer._rest += await viewer._taken.receive()
        moved = viewer._rest.rpartition(b"id: ")[2].split(b"\n")[0].decode()
        assert event_feed.parse_position(moved) != place


async def test_a_gap_is_sent_despite_the_filter(client: Redis, url: str) -> None:
    streams = Streams(client)
    ids = streams.write(*USERS[:10])
    client.xtrim(streams.keys.events(0), maxlen=3, approximate=False)
    async with operators(url) as running:
        viewer = running.look("/v1/events?type=offline", last_event_id=ids[2])
        event = await viewer.message()
        assert (event["event"], json.loads(event["data"])["reason"]) == ("gap", "trimmed")


async def test_after_redis_lost_its_data_the_new_stream_is_followed(client: Redis, url: str) -> None:
    streams = Streams(client)
    streams.write(*USERS[:10])
    async with operators(url) as running:
        viewer = await running.looking("/v1/events")
        streams.write("ann")
        assert (await take(viewer, 1))[0] == ["ann"]
        client.flushall()
        fresh = Streams(client)  # its ids are lower than those seen before
        assert (await viewer.message())["event"] == "gap"
        fresh.write("bob")
        assert (await take(viewer, 1))[0] == ["bob"]


async def test_streams_are_read_once_for_all_viewers_and_only_while_there_are_any(
    client: Redis, url: str
) -> None:
    streams = Streams(client)
    async with operators(url) as running:
        viewers = [await running.looking("/v1/events") for _ in range(5)]
        await until(lambda: sum(each["cmd"] == "xread" for each in client.client_list()) == 1)
        streams.write("ann")
        for viewer in viewers:
            assert (await take(viewer, 1))[0] == ["ann"]
            viewer.leave()
        await until(lambda: not any(each["cmd"] == "xread" for each in client.client_list()))


async def test_a_viewer_beyond_the_limit_is_refused(
    client: Redis, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "MAX_VIEWERS", 2)
    async with operators(url) as running:
        viewers = [running.look("/v1/events"), running.look("/v1/live")]
        await until(lambda: all(viewer.head.status == 200 for viewer in viewers))
        refused = await running.ask("/v1/events")
        assert (refused.status, refused.code) == (503, "too_many_viewers")
        assert running.context.http.refusals["viewers"] == 1
        for viewer in viewers:
            viewer.leave()
        await until(lambda: sum(running.context.http.viewers.values()) == 0)


def test_a_position_survives_a_round_trip_and_invalid_ones_are_refused() -> None:
    for text in ("", "x", "1-", "0:1-1,", f"{2**64}-0", "0:5", "1-1,2-2"):
        with pytest.raises(ApiError, match="bad_place"):
            event_feed.parse_position(text)
    both = {0: "5-1", 3: "7-0"}
    assert event_feed.parse_position(event_feed.position_text(both)) == both
    assert event_feed.parse_position(event_feed.position_text({0: "5-1"})) == "5-1"


def test_an_event_is_encoded_as_tail_prints_it() -> None:
    entry = Entry(0, "5-1", {"type": "online", "uid": "ann", "at_ms": "7", "meta": '{"a":NaN}'})
    made = broadcast.broadcast_event(entry, {0: "5-1"})
    assert json.loads(made.data) == {
        "id": "5-1",
        "shard": 0,
        "type": "online",
        "uid": "ann",
        "at_ms": 7,
        "meta": {"a": None},
    }


async def test_a_new_page_gets_the_latest_events_or_the_reason_why_there_are_none(
    client: Redis, url: str
) -> None:
    Streams(client).write(*(f"u{number}" for number in range(60)))
    async with operators(url) as running:
        past = json.loads((await running.look("/v1/live").message("past"))["data"])
        assert [event["uid"] for event in past["events"]] == [f"u{number}" for number in range(10, 60)]
    async with operators() as running:
        past = json.loads((await running.look("/v1/live").message("past"))["data"])
        assert past["events"] == []
        assert "refused" in past["problem"]
