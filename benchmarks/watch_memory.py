"""``python -m benchmarks.watch_memory``: what watches cost a worker in memory and processor time.

The part of a worker that serves watches is real. Redis is made up: it answers immediately, and has every user
in the same state. First each user is watched by one client, then by others, each with 150 friends. Each row
is a process of its own; bytes are what its resident memory grows by, after a tenth of the users, who fill
what has a size of its own. Clients and their connections are there before.
"""

import argparse
import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from random import Random
from typing import Any, Final, TypeVar

import msgpack
import trio

from loadtest.arguments import from_1
from loadtest.outcome import markdown
from loadtest.usage import memory
from presence.common.runtime import Caller, Linger, TrioWakeEvent
from presence.core.registry import Session
from presence.core.service_requests import UnwatchRequest, WatchRequest
from presence.watching.channel import (
    ChannelMessage,
    Pong,
    Replay,
    ServerChannel,
    ShardChanges,
    ShardJoined,
    Subscribed,
    Unsubscribed,
)
from presence.watching.user_states import EntryId, ShardSnapshot, WatchedState, read_hint
from presence.watching.watch_service import Watching

T = TypeVar("T")

NOW_MS: Final = 1_800_000_000_000
FRIENDS: Final = 150  # of each client
USERS: Final = 200_000
CROWD_SHARE: Final = 20  # of the users, one in so many is watched if each has a crowd of watchers
CROWD: Final = 100  # watchers
WARM_UP_SHARE: Final = 10
CLIENTS_AT_ONCE: Final = 20
TIMED_CLIENTS: Final = 200
TIMED_CHANGES: Final = 5_000
CHANGES_AT_ONCE: Final = 100
PATIENCE_S: Final = 60.0
STATES: Final = {
    "never seen": WatchedState("offline"),
    "offline": WatchedState("offline", NOW_MS, NOW_MS - 9_000, f"{NOW_MS}-0", reason="idle_timeout"),
    "online": WatchedState("online", NOW_MS, None, f"{NOW_MS}-0"),
    "online, with meta": WatchedState("online", NOW_MS, None, f"{NOW_MS}-0", '{"mood":"at lunch","game":7}'),
}


@dataclass(frozen=True)
class WatchPlan:
    """A row: so many watchers of each user, who is in such a state."""

    state: str
    watchers: int
    users: int = USERS


@dataclass(frozen=True)
class WatchCosts:
    """What a row has found."""

    plan: WatchPlan
    user_bytes: float  # per user, with the first watcher
    further_bytes: float | None  # per further watcher; None if there are none
    watch_us: float  # of a client that watches `FRIENDS` known users
    end_us: float  # of a client with `FRIENDS` watches
    change_us: float  # of a user


class _BenchLines:
    """The `Transport` of all clients: takes everything, and counts the packets."""

    def __init__(self) -> None:
        self.sent = 0

    def send(self, handle: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            at += 4 + int.from_bytes(data[at : at + 4], "big")
            self.sent += 1

    def try_send(self, handle: int, data: bytes) -> bool:
        self.send(handle, data)
        return True

    async def wait(self, sent: int) -> None:
        """Wait until so many packets were sent."""
        with trio.fail_after(PATIENCE_S):
            while self.sent < sent:
                await trio.lowlevel.checkpoint()

    def disconnect(self, handle: int, goodbye: bytes) -> None:
        raise AssertionError("unexpected hang-up")


class _BenchRedis(ServerChannel):
    """A server with one shard, which has every user in one state."""

    def __init__(self, state: WatchedState) -> None:
        self._state = state
        self._last: EntryId = (NOW_MS, 9)
        self._is_whole = False
        self.messages: list[ChannelMessage] = []
        self.arrived = TrioWakeEvent()

    def publish(self, uids: Sequence[str]) -> None:
        """Let these users come online again."""
        for uid in uids:
            before, self._last = self._last, (self._last[0] + 1, 0)
            at_ms = self._last[0]
            if self._is_whole:
                event = msgpack.packb([f"{at_ms}-0", "online", "login", "online", at_ms])
                self._send(ShardChanges(0, before, self._last, [(uid, event)]))
                continue
            fields = {"id": f"{at_ms}-0", "type": "online", "uid": uid, "status_ms": at_ms, "reason": "login"}
            if (change := read_hint(json.dumps(fields))) is not None:
                self._send(change)

    def open(self) -> None:
        self.messages.clear()

    def receive(self) -> list[ChannelMessage]:
        messages, self.messages = self.messages, []
        return messages

    def join(self, shard: int, *, whole: bool) -> None:
        self._is_whole = whole
        if whole:
            self._send(ShardJoined(shard))

    def leave(self, shard: int) -> None:
        pass

    def update_subscriptions(self, subscribe: Sequence[str], unsubscribe: Sequence[str]) -> None:
        self._send(*map(Unsubscribed, unsubscribe), *map(Subscribed, subscribe))

    def ping(self, number: int) -> None:
        self._send(Pong(number))

    def snapshot(self, shard: int, uids: Sequence[str]) -> ShardSnapshot:
        fresh = self._state._asdict() | {"id": self._state.id and f"{NOW_MS}-{len(uids) % 10}"}
        return ShardSnapshot({uid: WatchedState(**_anew(fresh)) for uid in uids}, self._last)

    def replay(self, shard: int, after: EntryId, uids: Any) -> Replay:
        return Replay((), self._last, 0, is_end=True)

    def check(self, shards: Sequence[int]) -> dict[int, Any]:
        return dict.fromkeys(shards, self._last)

    def close(self) -> None:
        pass

    def _send(self, *messages: ChannelMessage) -> None:
        self.messages += messages
        self.arrived.set()


def _anew(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of the texts and numbers of a state, because those of a record are its own."""
    copies: dict[type, Callable[[Any], Any]] = {
        str: lambda text: text and "".join([*text]),
        int: lambda number: int(str(number)),
    }
    return {name: copies.get(type(each), lambda same: same)(each) for name, each in fields.items()}


class _BenchRuntime:
    """Calls that wait until the made-up server has sent something."""

    def __init__(self, redis: _BenchRedis) -> None:
        self._redis = redis

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    def wake_event(self) -> TrioWakeEvent:
        return TrioWakeEvent()

    def loop_caller(self) -> Caller:
        return self

    async def call(self, blocking: Callable[[], T], linger: Linger | None = None) -> T:
        await trio.lowlevel.checkpoint()
        while (found := blocking()) == []:
            await self._redis.arrived.wait(60.0)
        return found


class _BenchServers:
    """The one server."""

    def __init__(self, redis: _BenchRedis) -> None:
        self._redis = redis

    def locate(self, shards: Sequence[int], *, anew: bool) -> dict[int, str]:
        return dict.fromkeys(shards, "redis")

    def channel(self, server: str) -> ServerChannel:
        return self._redis


class _BenchWorker:
    """The watches of a worker and its clients."""

    def __init__(self, plan: WatchPlan) -> None:
        self.redis, self.lines, self._random = _BenchRedis(STATES[plan.state]), _BenchLines(), Random(1)
        nothing: Any = None
        self.watching = Watching(
            lambda _uid: 0,
            _BenchServers(self.redis),
            nothing,
            max_watches=1_000,
            memory_bytes=2**40,
            absence_s=1e9,
            runtime=_BenchRuntime(self.redis),
        )
        self._clients = 0

    def client(self) -> Session:
        """Return a new client, which has made a request that is about no user."""
        self._clients += 1
        lines: Any = self.lines
        client = Session(lines, self._clients, f"client-{self._clients}", self._clients, 30.0, 0.0, 0.0)
        self.watching.take(client, UnwatchRequest(None, []))
        return client

    def shuffled(self, numbers: range) -> Iterator[list[int]]:
        """Return these users in another order, for one client after the other."""
        order = [*numbers]
        self._random.shuffle(order)
        return (order[first : first + FRIENDS] for first in range(0, len(order), FRIENDS))

    async def watch(self, clients: Sequence[Session], friends: Iterator[list[int]]) -> None:
        """Let each client watch its friends, some clients at the same time."""
        for first in range(0, len(clients), CLIENTS_AT_ONCE):
            some = clients[first : first + CLIENTS_AT_ONCE]
            awaited = self.lines.sent + len(some)
            for client in some:
                self.watching.take(client, WatchRequest(None, [_uid(number) for number in next(friends)]))
            await self.lines.wait(awaited)


def _uid(number: int) -> str:
    return f"user-{number:06}"


def _resident() -> int:
    gc.collect()
    return memory(os.getpid()).rss


async def _play(plan: WatchPlan) -> WatchCosts:
    worker = _BenchWorker(plan)
    warm_up, users = range(plan.users // WARM_UP_SHARE), range(plan.users // WARM_UP_SHARE, plan.users)
    everyone = range(plan.users)
    first_watchers = [[worker.client() for _ in worker.shuffled(some)] for some in (warm_up, users)]
    further = [[worker.client() for _ in worker.shuffled(everyone)] for _ in range(plan.watchers - 1)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.watching.run)
        await worker.watch(first_watchers[0], worker.shuffled(warm_up))
        before = _resident()
        await worker.watch(first_watchers[1], worker.shuffled(users))
        with_first = _resident()
        for clients in further:
            await worker.watch(clients, worker.shuffled(everyone))
        with_all = _resident()
        known = [[*friends] for friends in worker.shuffled(everyone)][:TIMED_CLIENTS]
        clients = [worker.client() for _ in known]
        began = time.process_time()
        await worker.watch(clients, iter(known))
        watched = time.process_time()
        for client in clients:
            worker.watching.left(client)
        left = time.process_time()
        for first in range(0, TIMED_CHANGES, CHANGES_AT_ONCE):
            awaited = worker.lines.sent + plan.watchers * CHANGES_AT_ONCE
            worker.redis.publish(
                [_uid(number % plan.users) for number in range(first, first + CHANGES_AT_ONCE)]
            )
            await worker.lines.wait(awaited)
        changed = time.process_time()
        nursery.cancel_scope.cancel()
    further_watches = plan.users * (plan.watchers - 1)
    return WatchCosts(
        plan,
        (with_first - before) / len(users),
        (with_all - with_first) / further_watches if further_watches else None,
        (watched - began) / len(clients) * 1e6,
        (left - watched) / len(clients) * 1e6,
        (changed - left) / TIMED_CHANGES * 1e6,
    )


def measure(plan: WatchPlan) -> WatchCosts:
    """Return the costs of a row, measured in this process."""
    return trio.run(_play, plan)


def plans(users: int) -> list[WatchPlan]:
    """Return all rows: each state with one watcher, then users with more."""
    rows = [WatchPlan(state, 1, users) for state in STATES]
    rows += [WatchPlan("online", watchers, users) for watchers in (3, 15)]
    return [*rows, WatchPlan("online", CROWD, max(FRIENDS, users // CROWD_SHARE))]


def table(found: Sequence[WatchCosts]) -> str:
    """Return the costs as a table in Markdown."""
    head = [
        "users",
        "state",
        "watchers of each",
        "bytes per user",
        "per further watcher",
        f"µs of a watch of {FRIENDS}",
        "of its end",
        "of a change",
    ]
    rows = [
        [
            f"{each.plan.users:,}",
            each.plan.state,
            str(each.plan.watchers),
            f"{each.user_bytes:.0f}",
            "" if each.further_bytes is None else f"{each.further_bytes:.1f}",
            f"{each.watch_us:.0f}",
            f"{each.end_us:.0f}",
            f"{each.change_us:.0f}",
        ]
        for each in found
    ]
    return markdown(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch_memory", description=__doc__)
    parser.add_argument("--users", type=from_1, default=USERS, help=f"(default {USERS})")
    arguments = parser.parse_args()
    found = []
    for plan in plans(arguments.users):
        with get_context("spawn").Pool(1) as process:
            found.append(process.apply(measure, (plan,)))
    print(table(found))


if __name__ == "__main__":
    main()
