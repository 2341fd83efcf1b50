"""What a runner sends, from a real Valkey to a real receiver."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
import trio

from presence.rooms.keys import RoomKeys
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import Redis, open_client
from presence.webhooks import runner as runner_module
from presence.webhooks import shard_sender
from presence.webhooks.http_client import WebhookClient
from presence.webhooks.metrics import RunnerMetrics
from presence.webhooks.runner import Runner
from presence.webhooks.shard_sender import SendOptions
from tests.rooms.keys_by_hand import HandMadeRooms
from tests.subscriber.streams import Streams
from tests.support.webhook_receiver import Event, WebhookReceiver

SECRET = b"a secret of the test"
DEADLINE_S = 10.0
SHARDS_METRIC = "presence_webhook_shards"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_sender, "RETRY_FIRST_S", 0.01)


@dataclass
class Setup:
    """Streams on a real Redis, and a receiver."""

    url: str
    client: Redis
    receiver: WebhookReceiver

    @asynccontextmanager
    async def runner(self, timeout_s: float = 2.0, **options: Any) -> AsyncIterator["Running"]:
        """Run a runner for the length of the block; it must end in order."""
        chosen: dict[str, Any] = {
            "group": "g",
            "types": frozenset({"online"}),
            "batch": 1,
            "attempts": 3,
            "after": "0",
        }
        client = WebhookClient(self.receiver.url, [SECRET], timeout_s)
        metrics = RunnerMetrics()
        chosen |= options
        name = f"of {'rooms' if 'kind' in chosen else 'users'}"
        runner = Runner(self.url, "presence", SendOptions(**chosen), client, metrics=metrics, name=name)
        await runner.join()
        running = Running(metrics, anyio.Event())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runner.run, running.stop)
            yield running
            running.stop.set()
        await client.close()


@dataclass
class Running:
    metrics: RunnerMetrics
    stop: anyio.Event

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
def setup(redis_server: EmbeddedRedis) -> Iterator[Setup]:
    receiver = WebhookReceiver(SECRET)
    with open_client(redis_server.url) as client, receiver.running():
        yield Setup(redis_server.url, client, receiver)


def other_connections(client: Redis) -> int:
    found: Any = client.info("clients")
    count: int = found["connected_clients"] - 1
    return count


async def until(condition: Any) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - threads and Redis bring it about
            await trio.sleep(0.01)


async def test_events_arrive_in_order_and_are_acknowledged(setup: Setup) -> None:
    streams = Streams(setup.client, 3)
    written = [f"u{n}" for n in range(40)]
    streams.write(*written)
    async with setup.runner(batch=7) as running:
        await until(lambda: len(setup.receiver.uids) == 40)
        await until(lambda: streams.pending() == 0)
    assert max(map(len, setup.receiver.accepted)) == 7
    for shard in range(3):
        mine = [uid for uid in written if streams.keys.shard(uid) == shard]
        assert [uid for uid in setup.receiver.uids if streams.keys.shard(uid) == shard] == mine
    assert running.metric("presence_webhook_events_total", result="accepted") == 40


async def test_only_the_wanted_types_are_sent_and_the_others_acknowledged(setup: Setup) -> None:
    streams = Streams(setup.client)
    streams.write("ann")
    streams.write("bob", kind="offline")
    streams.write("eve", kind="away")
    setup.client.xadd(
        "presence:{0}:events", {"type": "gap", "dropped": "3", "from_ms": "1", "to_ms": "2"}, id="8-0"
    )
    async with setup.runner(types=frozenset({"offline"})) as running:
        await until(lambda: len(setup.receiver.uids) == 2)
        await until(lambda: streams.pending() == 0)
    assert setup.receiver.uids == ["bob", "gap"]
    assert running.metric("presence_webhook_events_total", result="skipped") == 2


async def test_events_of_rooms_are_sent_beside_those_of_users_in_a_group_of_the_same_name(
    setup: Setup,
) -> None:
    rooms, streams = HandMadeRooms(setup.client, 3), Streams(setup.client, 3)
    streams.write("ann")
    for kind in ("occupied", "joined", "vacated"):
        rooms.tell(kind, "lobby", count=int(kind != "vacated"))
    async with (
        setup.runner() as users,
        setup.runner(types=frozenset({"occupied", "vacated"}), kind=RoomKeys) as running,
    ):
        await until(lambda: len(setup.receiver.uids) == 3)
        await until(lambda: (users.metric(SHARDS_METRIC), running.metric(SHARDS_METRIC)) == (3, 3))
    events = [event for some in setup.receiver.accepted for event in some]
    assert [each["type"] for each in events if each["type"] != "online"] == ["occupied", "vacated"]
    occupied = next(each for each in events if each["type"] == "occupied")
    fields = {name: occupied[name] for name in ("room", "uid", "count", "public", "source")}
    assert fields == {"room": "lobby", "uid": "ann", "count": 1, "public": 1, "source": 0}
    assert running.metric("presence_webhook_events_total", result="skipped") == 1


async def test_an_event_of_rooms_that_is_refused_becomes_a_dead_letter_of_rooms(setup: Setup) -> None:
    setup.receiver.answer = lambda events: 422 if events[0].get("count") == 0 else 200
    rooms = HandMadeRooms(setup.client, 1)
    for kind, count in (("occupied", 1), ("vacated", 0), ("occupied", 2)):
        rooms.tell(kind, "lobby", count=count)
    async with setup.runner(types=frozenset({"occupied", "vacated"}), kind=RoomKeys):
        await until(lambda: len(setup.receiver.uids) == 2)
    letters: Any = setup.client.xrange(rooms.keys.dead(0))
    assert [(letter[b"type"], letter[b"error"]) for _, letter in letters] == [(b"vacated", b"answered 422")]


async def test_a_gap_in_the_stream_of_rooms_is_sent(setup: Setup) -> None:
    rooms = HandMadeRooms(setup.client, 1)
    rooms.tell("occupied", "lobby")
    options: dict[str, Any] = {"types": frozenset({"occupied"}), "kind": RoomKeys}
    async with setup.runner(**options):
        await until(lambda: setup.receiver.uids == ["ann"])
    await until(lambda: not other_connections(setup.client))
    rooms.tell("vacated", "lobby", count=0)
    rooms.tell("occupied", "lobby", "bob")
    setup.client.xtrim(rooms.keys.events(0), maxlen=1, approximate=False)
    async with setup.runner(**options):
        await until(lambda: len(setup.receiver.uids) == 3)
    assert setup.receiver.uids == ["ann", "gap", "bob"]


async def test_a_failed_request_is_repeated_before_the_next_one(setup: Setup) -> None:
    failures = iter([500, 503, 500])
    setup.receiver.answer = lambda events: next(failures, 200) if events[0]["uid"] == "b" else 200
    Streams(setup.client).write("a", "b", "c")
    async with setup.runner() as running:
        await until(lambda: len(setup.receiver.uids) == 3)
    assert setup.receiver.uids == ["a", "b", "c"]
    requests = {
        result: running.metric("presence_webhook_requests_total", result=result)
        for result in ("accepted", "refused", "receiver_away")
    }
    assert requests == {"accepted": 3, "refused": 2, "receiver_away": 1}


async def test_one_bad_event_of_a_batch_becomes_a_dead_letter_and_no_other(setup: Setup) -> None:
    def refuse_bad(events: list[Event]) -> int:
        return 422 if any(event["uid"] == "bad" for event in events) else 200

    setup.receiver.answer = refuse_bad
    streams = Streams(setup.client)
    streams.write("a", "bad", "b")
    async with setup.runner(batch=10):
        await until(lambda: setup.receiver.uids == ["a", "b"])
        await until(lambda: streams.pending() == 0)
    (letter,) = streams.dead()
    assert (letter["uid"], letter["original_id"], letter["error"]) == ("bad", "2-0", "answered 422")


async def test_a_receiver_that_is_away_costs_no_event(setup: Setup) -> None:
    answers = iter([503] * 4)
    setup.receiver.answer = lambda _events: next(answers, 200)
    streams = Streams(setup.client)
    streams.write("a")
    async with setup.runner(attempts=1):
        await until(lambda: setup.receiver.uids == ["a"])
    assert streams.dead() == []


async def test_a_gap_is_sent(setup: Setup) -> None:
    streams = Streams(setup.client)
    streams.write("a")
    async with setup.runner():
        await until(lambda: setup.receiver.uids == ["a"])
    await until(lambda: not other_connections(setup.client))  # a read on its way could still take an event
    streams.write("lost", "b")
    setup.client.xtrim("presence:{0}:events", maxlen=1, approximate=False)
    async with setup.runner():
        await until(lambda: len(setup.receiver.uids) == 3)
    assert setup.receiver.uids == ["a", "gap", "b"]


async def test_a_request_under_way_is_completed_and_acknowledged_at_the_end(setup: Setup) -> None:
    streams = Streams(setup.client)
    streams.write("a", "b")
    async with setup.runner() as running:
        token = trio.lowlevel.current_trio_token()

        def stop_meanwhile(_events: list[Event]) -> int:
            trio.from_thread.run_sync(running.stop.set, trio_token=token)
            return 200

        setup.receiver.answer = stop_meanwhile
        await running.stop.wait()
    assert setup.receiver.uids == ["a"]
    setup.receiver.answer = lambda _events: 200
    async with setup.runner():
        await until(lambda: len(setup.receiver.uids) == 2)
    assert setup.receiver.uids == ["a", "b"]
    assert streams.pending() == 0


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_args: Any, **_kwargs: Any) -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(anyio.to_thread, "run_sync", refuse)


def received(setup: Setup) -> list[str]:
    """Return each uid once: a request that a busy machine answers after its time-out is repeated."""
    return list(dict.fromkeys(setup.receiver.uids))


async def test_a_lack_of_threads_ends_no_runner(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner_module, "MIN_LOCK_S", 0.9)  # it is renewed after a third of that
    monkeypatch.setattr(shard_sender, "REDIS_RETRY_S", 0.01)
    streams = Streams(setup.client)
    streams.write("a")
    async with setup.runner(timeout_s=0.3):
        await until(lambda: received(setup) == ["a"])
        with monkeypatch.context() as lacking:
            refuse_threads(lacking)
            await until(lambda: "cannot renew the locks of shards" in caplog.text)
            await until(lambda: "cannot call Redis" in caplog.text)
        streams.write("b")
        await until(lambda: received(setup) == ["a", "b"])
        await until(lambda: streams.pending() == 0)
    assert "a higher limit of processes and threads" in caplog.text


async def test_damaged_metadata_end_no_runner(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner_module, "MIN_LOCK_S", 0.9)  # it is renewed after a third of that
    streams = Streams(setup.client)
    streams.write("a")
    async with setup.runner(timeout_s=0.3):
        await until(lambda: received(setup) == ["a"])
        shards: Any = setup.client.hget("presence:meta", "shards")
        setup.client.hset("presence:meta", "shards", "damaged")
        await until(lambda: "is not a number of shards: redis-cli DEL presence:meta" in caplog.text)
        setup.client.hset("presence:meta", "shards", shards)
        streams.write("b")
        await until(lambda: received(setup) == ["a", "b"])


async def test_a_runner_that_lacks_a_thread_at_its_end_ends_in_order(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    Streams(setup.client).write("a")
    async with setup.runner():
        await until(lambda: setup.receiver.uids == ["a"])
        refuse_threads(monkeypatch)
