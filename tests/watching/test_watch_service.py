"""Watches and queries from the request to the packet, on a shard in memory, in virtual time."""

import math
import random
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock

from presence.common.errors import StoreUnavailable
from presence.common.faults import Faults
from presence.common.runtime import Caller, Linger, TrioWakeEvent
from presence.core.authenticator import NamePatterns
from presence.core.registry import Session
from presence.core.service_requests import QueryRequest, UnwatchRequest, WatchRequest
from presence.core.visibility import Visibility
from presence.protocol import UIDS_MAX, Code, Kind
from presence.watching import queries, watch_service
from presence.watching.pending_watches import RequestTimeouts, bytes_of_watch
from presence.watching.queries import QUERY_TIMEOUT_S as QUERY_PATIENCE_S
from presence.watching.server_watch import CHECK_INTERVAL_S
from presence.watching.shard_watch import COMPARE_CYCLE_S, LINGER_S
from presence.watching.user_states import WatchedState
from presence.watching.watch_quota import bytes_of_watches
from presence.watching.watch_service import OWN_WATCHES, WATCH_TIMEOUT_S, Watching
from tests.auth.gates import WordAuthenticator
from tests.watching.fakes import Line, session
from tests.watching.shard import MemoryChannel, MemoryServers, Shard

T = TypeVar("T")
ABSENCE_S = 40.0
CALL_S = 0.001
LULL_S = 0.02
USERS, WATCHES = 50, 80
NAME_BYTES = sum(len(f"user-{number}") for number in range(USERS))
MEMORY_BYTES = bytes_of_watches(users=USERS, name_bytes=NAME_BYTES, watches=WATCHES, sessions=2)


def names(count: int) -> list[str]:
    return [f"user-{number}" for number in range(count)]


class Runtime:
    """Calls that take a moment of virtual time."""

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    def wake_event(self) -> TrioWakeEvent:
        return TrioWakeEvent()

    def loop_caller(self) -> Caller:
        return self

    async def call(self, blocking: Callable[[], T], linger: Linger | None = None) -> T:
        await trio.sleep(CALL_S)
        while (found := blocking()) == []:  # noqa: ASYNC110 - the fake sends no notification
            await trio.sleep(LULL_S)
        return found


class Records:
    """The states of users, for queries."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.reads: list[list[str]] = []
        self.is_up = True

    def read(self, uids: Sequence[str], *, detail: bool) -> Mapping[str, WatchedState]:
        self.reads.append(list(uids))
        if not self.is_up:
            raise StoreUnavailable("away")
        return self.shard.snapshot(list(uids)).states


class Node:
    """A node's watching, and its clients. Users whose uid begins with ``far`` are in a second shard."""

    def __init__(self, visibility: Visibility | None = None, **parts: Any) -> None:
        self.visibility = visibility
        self.parts = parts  # further arguments of `Watching`
        self.shard = Shard()
        self.channel = MemoryChannel(self.shard)
        self.far = MemoryChannel(Shard())
        self.servers = MemoryServers(lambda shard: self.far if shard else self.channel)
        self.records = Records(self.shard)
        self.ended: list[Session] = []
        self.faults = Faults(self.ended.append)
        self.use(self.records)

    def use(self, records: Records, runtime: Runtime | None = None) -> None:
        """Use other records, or another runtime."""
        self.watching = Watching(
            lambda uid: int(uid.startswith("far")),
            self.servers,
            records,
            max_watches=1000,
            memory_bytes=MEMORY_BYTES,
            absence_s=ABSENCE_S,
            visibility=self.visibility,
            runtime=runtime or Runtime(),
            faults=self.faults,
            **self.parts,
        )

    def watch(self, *uids: str, line: Line | None = None) -> tuple[Session, Line]:
        watcher, line = session(line=line)
        self.watching.take(watcher, WatchRequest(1, list(uids)))
        return watcher, line

    async def watched(self, *uids: str) -> tuple[Session, Line]:
        watcher, line = self.watch(*uids)
        await trio.sleep(0.1)
        (answer,) = line.packets()
        assert answer.kind == Kind.OK
        return watcher, line

    def figures(self, part: str) -> dict[str, Any]:
        found: dict[str, Any] = self.watching.report()[part]
        return found


@asynccontextmanager
async def running(node: Node | None = None) -> AsyncIterator[Node]:
    node = node or Node()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.watching.run)
        yield node
        nursery.cancel_scope.cancel()


def written(line: Line) -> list[tuple[str, str | None]]:
    """Return the users and states that were pushed."""
    return [(packet.payload["uid"], packet.payload["status"]) for packet in line.packets()]


async def test_a_watch_is_answered_and_changes_follow(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.shard.write("ann", "online")
        _, line = node.watch("ann", "bob")
        await trio.sleep(0.1)
        (answer,) = line.packets()
        states = answer.payload["presence"]
        assert {uid: state["status"] for uid, state in states.items()} == {"ann": "online", "bob": "offline"}
        node.shard.write("ann", "away")
        node.shard.write("bob", "online")
        node.shard.write("cy", "online")
        await trio.sleep(0.1)
        assert written(line) == [("ann", "away"), ("bob", "online")]


async def test_a_watch_without_an_answer_from_redis_is_refused_and_removed(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        node.channel.is_up = False
        started = trio.current_time()
        _, line = node.watch("ann")
        await trio.sleep(WATCH_TIMEOUT_S + 0.1)
        (refusal,) = line.packets()
        assert refusal.payload["code"] == Code.BUSY
        assert refusal.payload["retry_after"] > 0
        assert trio.current_time() - started < WATCH_TIMEOUT_S + 1
        node.channel.is_up = True
        await trio.sleep(5)
        node.shard.write("ann", "online")
        await trio.sleep(1)
        assert line.packets() == []
        assert node.watching.report()["users"] == 0


async def test_changes_during_a_loss_are_pushed_in_order(autojump_clock: MockClock) -> None:
    async with running() as node:
        _, line = await node.watched("ann", "bob")
        node.shard.write("ann", "online")
        await trio.sleep(CHECK_INTERVAL_S)
        line.packets()
        node.channel.is_up = False
        await trio.sleep(1)
        for status in ("away", "online", "offline"):
            node.shard.write("ann", status)
            node.shard.write("cy", "online")
        node.channel.is_up = True
        await trio.sleep(2)
        assert written(line) == [("ann", "away"), ("ann", "online"), ("ann", "offline")]
        assert node.figures("shards")["replays"] == 1


async def test_a_stream_that_does_not_reach_back_is_replaced_by_snapshots(autojump_clock: MockClock) -> None:
    async with running() as node:
        _, line = await node.watched("ann", "bob")
        node.channel.is_up = False
        await trio.sleep(1)
        node.shard.write("ann", "online")
        node.shard.write("ann", "away")
        node.shard.write("bob", "online")
        node.shard.entries.clear()
        node.channel.is_up = True
        await trio.sleep(2)
        assert sorted(written(line)) == [("ann", "away"), ("bob", "online")]  # users are read in any order
        assert node.figures("shards")["rereads"] == 1


async def test_a_silent_subscription_is_given_up(autojump_clock: MockClock) -> None:
    async with running() as node:
        _, line = await node.watched("ann")
        node.channel.is_mute = True
        node.shard.write("ann", "online")
        await trio.sleep(CHECK_INTERVAL_S)
        node.channel.is_mute = False
        node.shard.wire.clear()  # the pong, too
        await trio.sleep(2 * CHECK_INTERVAL_S)
        assert written(line) == [("ann", "online")]
        assert node.figures("shards")["losses"] == 1


async def test_a_connection_to_a_replica_is_closed(autojump_clock: MockClock) -> None:
    async with running() as node:
        await node.watched("ann")
        node.channel.is_primary = False
        await trio.sleep(CHECK_INTERVAL_S + 0.1)
        assert node.figures("shards")["losses"] >= 1


async def test_a_change_that_was_not_published_is_found_by_a_comparison(autojump_clock: MockClock) -> None:
    async with running() as node:
        _, line = await node.watched("ann")
        node.shard.subscribed.clear()  # without a notification
        node.shard.write("ann", "online")
        await trio.sleep(2 * COMPARE_CYCLE_S)
        assert written(line) == [("ann", "online")]
        assert node.figures("views")["corrected"] == 1


async def test_unwatched_users_are_unsubscribed_and_the_connection_is_closed_in_the_end(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        watcher, line = await node.watched("ann", "bob")
        other, _ = await node.watched("bob")
        node.watching.take(watcher, UnwatchRequest(2, None))
        await trio.sleep(0.1)
        assert [packet.id for packet in line.packets()] == [2]
        assert node.shard.subscribed == {"bob"}
        assert node.watching.report()["watches"] == 1
        node.watching.left(other)
        await trio.sleep(0.1)
        connected = [node.channel.is_connected]
        await trio.sleep(LINGER_S + CHECK_INTERVAL_S)
        connected.append(node.channel.is_connected)
        await node.watched("ann")
        connected.append(node.channel.is_connected)
        assert connected == [True, False, True]


async def test_a_watcher_who_left_before_the_answer_is_not_watching(autojump_clock: MockClock) -> None:
    async with running() as node:
        watcher, line = node.watch("ann")
        watcher.transport = None
        node.watching.left(watcher)
        await trio.sleep(1)
        assert line.packets() == []
        assert node.watching.report()["watchers"] == node.watching.report()["users"] == 0


async def test_a_user_unwatched_before_the_answer_is_answered_and_not_watched(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        watcher, line = node.watch("ann", "bob")
        node.watching.take(watcher, UnwatchRequest(2, ["ann"]))
        await trio.sleep(0.1)
        unwatched, answer = line.packets()
        assert (unwatched.id, sorted(answer.payload["presence"])) == (2, ["ann", "bob"])
        node.shard.write("ann", "online")
        node.shard.write("bob", "online")
        await trio.sleep(0.1)
        assert written(line) == [("bob", "online")]


async def test_a_user_watched_again_immediately_is_answered_from_memory(autojump_clock: MockClock) -> None:
    async with running() as node:
        watcher, line = await node.watched("ann")
        node.watching.take(watcher, UnwatchRequest(2, ["ann"]))
        node.watching.take(watcher, WatchRequest(3, ["ann"]))
        await trio.sleep(0.1)
        assert [(packet.kind, packet.id) for packet in line.packets()] == [(Kind.OK, 2), (Kind.OK, 3)]
        await node.watched("ann")
        assert node.channel.snapshots == 1, "the second watcher needs no snapshot either"


async def test_an_answer_during_a_loss_matches_earlier_pushes(autojump_clock: MockClock) -> None:
    """One user is known when the watch is requested, and changes; then the connection breaks."""
    async with running() as node:
        _, other = await node.watched("ann")
        node.far.is_up = False
        _, line = node.watch("ann", "far-bob")
        await trio.sleep(0.1)
        node.shard.write("ann", "online")
        await trio.sleep(0.1)
        assert written(other) == [("ann", "online")]
        node.channel.is_up = False
        node.far.is_up = True
        await trio.sleep(2)
        (answer,) = line.packets()
        assert answer.payload["presence"]["ann"]["status"] == "online"
        node.channel.is_up = True
        await trio.sleep(2)
        assert line.packets() == [], "no push is repeated"


async def test_a_rate_limited_client_is_granted_after_retry_after(autojump_clock: MockClock) -> None:
    async with running() as node:
        asker, line = session()
        for number in range(20):
            node.watching.take(asker, QueryRequest(number, [f"user-{each}" for each in range(500)]))
        await trio.sleep(1)
        packets = line.packets()
        refused = [packet for packet in packets if packet.kind == Kind.ERROR]
        assert {packet.payload["code"] for packet in refused} == {Code.RATE_LIMITED}
        assert 0 < len(refused) < 20
        await trio.sleep(max(packet.payload["retry_after"] for packet in refused))
        node.watching.take(asker, QueryRequest(99, ["ann"]))
        await trio.sleep(1)
        assert [packet.kind for packet in line.packets()] == [Kind.OK]


async def test_a_reconnect_or_another_device_renews_no_share(autojump_clock: MockClock) -> None:
    async with running() as node:
        codes = []
        for number in range(20):
            asker, line = session()
            for _ in range(4):
                node.watching.take(asker, QueryRequest(number, [f"user-{n}" for n in range(UIDS_MAX)]))
            codes += [packet.payload["code"] for packet in line.packets()]
            node.watching.left(asker)
        assert set(codes) == {Code.RATE_LIMITED}
        assert len(codes) > 60
        other, line = session("other")
        node.watching.take(other, QueryRequest(1, ["ann"]))
        await trio.sleep(1)
        assert [packet.kind for packet in line.packets()] == [Kind.OK]


@pytest.mark.parametrize("is_unwatched", [False, True])
async def test_a_user_who_was_hidden_while_a_watch_waited_is_hidden_in_its_answer(
    autojump_clock: MockClock, *, is_unwatched: bool
) -> None:
    visibility = Visibility(WordAuthenticator(), trio.current_time)
    node = Node(visibility)
    async with running(node):
        node.channel.is_up = False
        watcher, line = session()
        visibility.set_sight(watcher, NamePatterns(frozenset({"ann", "bob"})))
        node.watching.take(watcher, WatchRequest(1, ["ann", "bob"]))
        if is_unwatched:
            node.watching.take(watcher, UnwatchRequest(None, ["ann"]))
            line.packets()
        for sight in (NamePatterns(frozenset({"bob"})), NamePatterns(frozenset({"ann", "bob"}))):
            visibility.set_sight(watcher, sight)
            node.watching.sight_changed(watcher)
        node.channel.is_up = True
        await trio.sleep(4)
        (answer,) = line.packets()
        statuses = {uid: state["status"] for uid, state in answer.payload["presence"].items()}
        assert statuses == {"ann": "not_allowed", "bob": "offline"}
        assert node.watching.watches(watcher) == 1


async def test_a_request_that_is_over_is_not_kept_until_its_time_out() -> None:
    class Request:
        pass

    timeouts = RequestTimeouts[Request](5.0, lambda request: None, Faults(), "watch")
    first, second = Request(), Request()
    timeouts.add(first)
    timeouts.add(second)
    kept = weakref.ref(second)
    timeouts.discard(second)
    del second
    assert kept() is None


async def test_pending_watches_are_bounded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_service, "MAX_PENDING_BYTES", bytes_of_watch(["ann", "bob"]) + 1)
    async with running() as node:
        node.channel.is_up = False
        for _ in range(2):
            node.watch("ann", "bob")
            _, line = node.watch("cy", "dee")
            (refusal,) = line.packets()
            assert refusal.payload["code"] == Code.BUSY
            await trio.sleep(WATCH_TIMEOUT_S + 0.1)
        node.channel.is_up = True
        await trio.sleep(5)
        await node.watched("ann", "bob")
        await node.watched("cy", "dee")


@pytest.mark.parametrize("is_long", [False, True])
async def test_pending_queries_are_bounded_by_the_memory_of_names(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    monkeypatch.setattr(queries, "MAX_PENDING_BYTES", 50_000)
    uid = "\N{GRINNING FACE}" + "u" * 124 if is_long else "u" * 124
    async with running() as node:
        lines = [session(f"asker-{number}") for number in range(2)]
        for asker, _ in lines:
            node.watching.take(asker, QueryRequest(7, [f"{uid[:-2]}{number:02}" for number in range(60)]))
        refused = [bool(line.packets()) for _, line in lines]
        assert refused == [False, is_long]


async def test_queries_are_batched_into_one_read(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.shard.write("ann", "online")
        lines = []
        for number in range(5):
            asker, line = session(f"asker-{number}")
            node.watching.take(asker, QueryRequest(7, ["ann", f"user-{number}"]))
            lines.append(line)
        await trio.sleep(1)
        assert len(node.records.reads) == 1
        for number, line in enumerate(lines):
            (answer,) = line.packets()
            states = answer.payload["presence"]
            assert [states["ann"]["status"], states[f"user-{number}"]["status"]] == ["online", "offline"]


async def test_without_memory_each_client_has_its_own_few_watches_and_no_more(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        greedy, _ = await node.watched(*names(USERS))
        other, line = await node.watched(*names(WATCHES - USERS))
        assert node.watching.report()["memory_bytes"] == MEMORY_BYTES
        node.watching.take(other, WatchRequest(2, ["one-more"]))
        (refusal,) = line.packets()
        assert (refusal.id, refusal.payload["code"]) == (2, Code.BUSY)
        assert "more than 10 watches" in refusal.payload["message"]
        assert refusal.payload["retry_after"] > 5, "not before some watchers may have left"
        await node.watched(*(f"friend-{number}" for number in range(OWN_WATCHES)))
        node.watching.left(greedy)
        await trio.sleep(1)  # until the last subscription has ended
        node.watching.take(other, WatchRequest(3, ["one-more"]))
        await trio.sleep(0.1)
        (granted,) = line.packets()
        assert (granted.id, granted.kind) == (3, Kind.OK)
        report = node.watching.report()
        assert (report["full"], report["max_memory_bytes"]) == (1, MEMORY_BYTES)


async def test_without_memory_a_client_may_ask_again_about_those_whom_it_watches(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        watcher, line = await node.watched(*names(USERS))
        await node.watched(*names(WATCHES - USERS))
        for number in range(2):  # their own watches take more than there is
            await node.watched(*(f"friend-{number}-{n}" for n in range(OWN_WATCHES)))
        assert node.watching.report()["memory_bytes"] > MEMORY_BYTES
        node.watching.take(watcher, WatchRequest(2, names(USERS)))
        await trio.sleep(0.1)
        (again,) = line.packets()
        assert again.kind == Kind.OK


async def test_the_counted_memory_is_that_of_the_watches_there_are(autojump_clock: MockClock) -> None:
    rng = random.Random(5)
    async with running() as node:
        watchers = [session()[0] for _ in range(4)]
        for _ in range(120):
            watcher = rng.choice(watchers)
            uids = [
                f"{rng.choice(['near', 'far-'])}{n:02}" for n in rng.sample(range(60), rng.randrange(1, 30))
            ]
            request = UnwatchRequest(1, uids) if rng.random() < 0.5 else WatchRequest(1, uids)
            node.far.is_up = rng.random() > 0.3
            node.watching.take(watcher, request)
            await trio.sleep(6 if rng.random() < 0.1 else 0.05)
        node.far.is_up = True
        await trio.sleep(60)
        report = node.watching.report()
        assert report["memory_bytes"] == bytes_of_watches(
            users=report["users"],
            name_bytes=report["users"] * len("near00"),
            watches=report["watches"],
            sessions=report["watchers"],
        )
        assert report["full"] > 0
        for each in watchers:
            node.watching.left(each)
        await trio.sleep(60)
        assert node.watching.report()["memory_bytes"] == 0


async def test_a_query_and_a_watch_agree_about_an_offline_user(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.shard.write("ann", "online")
        await node.watched("ann")
        node.shard.write("ann", "offline")
        await trio.sleep(0.1)
        watcher, line = node.watch("ann")
        node.watching.take(watcher, QueryRequest(2, ["ann"]))
        await trio.sleep(1)
        watched, queried = (packet.payload["presence"]["ann"] for packet in line.packets())
        assert watched == queried
        assert watched["last_seen_ms"] is not None


class Steps(trio.abc.Instrument):
    """The most watches and queries that one step of a task has refused."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self.refused = self.most = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        report = self._watching.report()
        refused = report["timed_out"] + report["queries"]["refused"]
        self.most, self.refused = max(self.most, refused - self.refused), refused


@pytest.mark.parametrize("request_of", [WatchRequest, QueryRequest])
async def test_other_tasks_run_while_all_pending_requests_are_refused(
    autojump_clock: MockClock, request_of: type[WatchRequest | QueryRequest]
) -> None:
    async with running() as node:
        node.channel.is_up = node.records.is_up = False
        steps = Steps(node.watching)
        for _ in range(20):
            watcher, _ = session()
            for id in range(5):
                node.watching.take(watcher, request_of(id, ["ann"]))
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(WATCH_TIMEOUT_S + 0.1)
        trio.lowlevel.remove_instrument(steps)
        assert (steps.refused, steps.most) == (100, 1)


class HangingRuntime(Runtime):
    """Calls that never return."""

    async def call(self, blocking: Callable[[], T], linger: Linger | None = None) -> T:
        await trio.sleep(math.inf)
        raise AssertionError


async def test_a_query_does_not_wait_for_a_redis_that_hangs(autojump_clock: MockClock) -> None:
    node = Node()
    node.use(node.records, HangingRuntime())
    async with running(node):
        started = trio.current_time()
        asker, line = session()
        for number in range(2):
            node.watching.take(asker, QueryRequest(number, ["ann"]))
            await trio.sleep(1)
        await trio.sleep_until(started + QUERY_PATIENCE_S + 0.1)
        refused = [packet.id for packet in line.packets()]
        await trio.sleep(1)
        assert [refused, [packet.id for packet in line.packets()]] == [[0], [1]]
