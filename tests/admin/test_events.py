"""`/v1/events`: nothing lost, nothing twice, whoever comes back and however slow he is."""

import json
from collections.abc import Iterator

import pytest
import trio

from presence.admin import broadcast, event_feed, sse
from presence.admin.history import PAGE_EVENTS, EventHistory
from presence.admin.responses import ApiError
from presence.store.client import Redis, open_client
from presence.store.embedded import EmbeddedRedis
from presence.subscriber import follower
from presence.subscriber.events import Entry
from tests.admin.asking import Viewer, operators
from tests.subscriber.streams import Streams
from tests.support.waiting import until

USERS = [f"u{number}" for number in range(200)]


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a read that finds nothing end soon."""
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


async def taken(viewer: Viewer, count: int) -> tuple[list[str], str]:
    """Take so many events; return the users, and the last id."""
    uids, last = [], ""
    for _ in range(count):
        told = await viewer.message()
        uids.append(json.loads(told["data"])["uid"])
        last = told["id"]
    return uids, last


async def test_who_looks_is_told_of_what_is_new_and_of_nothing_before(streams: Streams, url: str) -> None:
    streams.write("before")
    async with operators(url) as running:
        viewer = await running.looking("/v1/events")
        streams.write("ann", "bob")
        streams.write("ann", kind="offline")
        uids, _ = await taken(viewer, 3)
        assert sorted(uids[:2]) == ["ann", "bob"]
        assert uids[2] == "ann"


async def test_who_comes_back_misses_nothing_and_is_told_nothing_twice(streams: Streams, url: str) -> None:
    async with operators(url) as running:
        seen: list[str] = []
        viewer = await running.looking("/v1/events")
        written = list(USERS)
        streams.write(*written[:50])
        last, turns = "", 0
        while len(seen) < len(written):
            some, last = await taken(viewer, min(17, len(written) - len(seen)))
            seen += some
            viewer.leave()
            turns += 1
            if turns == 2:
                streams.write(*written[50:])  # while nobody looks
            viewer = running.look("/v1/events", last_event_id=last)
        assert sorted(seen) == sorted(written)
        await until(lambda: sum(running.context.http.viewers.values()) <= 1)
        streams.write("the last")
        assert (await taken(viewer, 1))[0] == ["the last"]
        viewer.leave()


async def test_events_come_while_the_past_is_read(streams: Streams, url: str) -> None:
    streams.write(*USERS)
    async with operators(url) as running:
        other = await running.looking("/v1/events")  # so that somebody reads all along
        viewer = running.look("/v1/events?from=0")
        seen, _ = await taken(viewer, 20)
        more = [f"later{number}" for number in range(30)]
        streams.write(*more)
        seen += (await taken(viewer, len(USERS) + len(more) - 20))[0]
        assert sorted(seen) == sorted([*USERS, *more])
        assert sorted((await taken(other, len(more)))[0]) == sorted(more)


async def test_who_is_too_slow_for_the_queue_is_late_and_misses_nothing(
    streams: Streams, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "QUEUE_EVENTS", 10)
    async with operators(url) as running:
        slow, quick = [await running.looking("/v1/events") for _ in range(2)]
        for first in range(0, len(USERS), 5):
            streams.write(*USERS[first : first + 5])
            await taken(quick, 5)  # he is not held up
        seen, _ = await taken(slow, len(USERS))
        assert sorted(seen) == sorted(USERS)


async def test_a_page_of_the_past_is_bounded_over_all_shards(streams: Streams, url: str) -> None:
    streams.write(*(f"u{number}" for number in range(2000)))
    pages = EventHistory(url, "presence")
    page = await pages.page(dict.fromkeys(range(streams.keys.shards), "0-0"))
    assert 0 < len(page.items) <= PAGE_EVENTS
    assert page.is_complete
    pages.close()


async def test_a_filter_passes_its_type_and_the_place_moves_on(
    streams: Streams, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "HEARTBEAT_INTERVAL_S", 0.2)
    async with operators(url) as running:
        viewer = await running.looking("/v1/events?type=offline")
        streams.write("ann", kind="offline")
        streams.write("ann", "bob")
        told = await viewer.message()
        assert (told["event"], json.loads(told["data"])["uid"]) == ("offline", "ann")
        place = event_feed.parse_position(told["id"])
        with trio.fail_after(30):
            while b"id: " not in viewer._rest.rpartition(b":\n")[2]:
                viewer._rest += await viewer._taken.receive()
        moved = viewer._rest.rpartition(b"id: ")[2].split(b"\n")[0].decode()
        assert event_feed.parse_position(moved) != place


async def test_a_gap_is_told_whatever_the_filter(client: Redis, url: str) -> None:
    streams = Streams(client)
    ids = streams.write(*USERS[:10])
    client.xtrim(streams.keys.events(0), maxlen=3, approximate=False)
    async with operators(url) as running:
        viewer = running.look("/v1/events?type=offline", last_event_id=ids[2])
        told = await viewer.message()
        assert (told["event"], json.loads(told["data"])["reason"]) == ("gap", "trimmed")


async def test_redis_that_lost_what_it_had_is_followed_on(client: Redis, url: str) -> None:
    streams = Streams(client)
    streams.write(*USERS[:10])
    async with operators(url) as running:
        viewer = await running.looking("/v1/events")
        streams.write("ann")
        assert (await taken(viewer, 1))[0] == ["ann"]
        client.flushall()
        fresh = Streams(client)  # its ids are lower than those that were seen
        assert (await viewer.message())["event"] == "gap"
        fresh.write("bob")
        assert (await taken(viewer, 1))[0] == ["bob"]


async def test_streams_are_read_once_for_all_and_only_while_somebody_looks(client: Redis, url: str) -> None:
    streams = Streams(client)
    async with operators(url) as running:
        viewers = [await running.looking("/v1/events") for _ in range(5)]
        await until(lambda: sum(each["cmd"] == "xread" for each in client.client_list()) == 1)
        streams.write("ann")
        for viewer in viewers:
            assert (await taken(viewer, 1))[0] == ["ann"]
            viewer.leave()
        await until(lambda: not any(each["cmd"] == "xread" for each in client.client_list()))


async def test_beyond_the_limit_a_viewer_is_refused(
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


def test_a_place_as_text_is_read_as_it_was_written_and_all_else_refused() -> None:
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


async def test_who_opens_the_page_sees_the_last_events_of_before_or_why_there_are_none(
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
