"""What it costs to tell workers the changes of watched users: ``python -m benchmarks.watch_channels``.

A node writes transitions to one shard, in batches; so many workers listen, each to the channels of a share of
the users drawn at random, or to all changes of the shard. Redis' processor time per transition is that of its
process, and includes writing the transition; all ways take turns in each round. A worker's time is that of
receiving and decoding, without views and pushes. Then what a worker takes of Redis' memory, and what reading
the records of users costs, which is how a worker recovers if the stream does not reach back.
"""

import argparse
import random
import selectors
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final, NamedTuple

import trio

from loadtest.arguments import from_1
from loadtest.outcome import markdown
from loadtest.servers import LocalRedis
from presence.common.runtime import LoopCaller
from presence.core.changes import Change, Op
from presence.outbox.steps import Batch, Counter, Item, Opening
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from presence.store.watch_connection import WatchServers
from presence.store.watch_reads import read_snapshot
from presence.watching.channel import ShardChanges
from presence.watching.shard_placement import MAX_USER_CHANNELS
from presence.watching.shard_watch import MAX_USERS_PER_SNAPSHOT
from presence.watching.user_states import UserEvent, read_change

KEYS: Final = Keys()
USERS: Final = 2_048
UIDS: Final = tuple(f"user-{i:06d}" for i in range(USERS))
AT_MS: Final = 1_700_000_000_000
WARM_UP: Final = 1_024  # transitions
RECORDS: Final = 200_000  # of which some are read
SHARDS: Final = 64  # of whose channels the memory is measured
MAX_CALLS: Final = 2_048  # of a script, in one measurement
RECEIVED: Final = 4_096  # changes that a worker receives; Redis holds them until then


class Channels(NamedTuple):
    """How so many workers listen."""

    listeners: int
    share: float  # of the users that each watches; 1 with `whole`
    whole: bool = False

    @property
    def name(self) -> str:
        if not self.listeners:
            return "nobody watches"
        return "whole shard" if self.whole else f"{self.share:.0%} of the users each"


class Writer:
    """A node that writes logins and ends of all users in turn, in batches."""

    def __init__(self, url: str) -> None:
        self._store = RedisStore(url, Shape(KEYS, maxlen=100_000, seen_retention_ms=10**13))
        opening = Batch(0, Counter("a", 1, 1), "", (), 1.0, opening=Opening("a", "0-0", None))
        self._n = 1
        self._replication_id = self._apply(opening).replication_id
        self._at = 0

    def write(self, transitions: int, batch: int) -> None:
        for _ in range(transitions // batch):
            changes = [self._next() for _ in range(batch)]
            self._n += 1
            items = tuple(Item(each) for each in changes)
            self._apply(Batch(0, Counter("a", 1, self._n), self._replication_id, items, 1.0))

    def close(self) -> None:
        self._store.close()

    def _next(self) -> Change:
        round_number, place = divmod(self._at, USERS)
        self._at += 1
        op, code = (Op.END, 100) if round_number % 2 else (Op.LOGIN, 1)
        session = f"{round_number // 2:08x}{place:08x}"
        return Change(op, UIDS[place], "", session, code, 1.0, AT_MS, AT_MS, 30_000)

    def _apply(self, batch: Batch) -> Any:
        (reply,) = self._store.apply([batch])
        if isinstance(reply, Exception):
            raise reply
        return reply


def channels(way: Channels, seed: int) -> list[str]:
    if way.whole:
        return [KEYS.changes_channel(0)]
    watched = random.Random(seed).sample(UIDS, round(USERS * way.share))
    return [KEYS.watchers_channel(0), *map(KEYS.user_channel, watched)]


@contextmanager
def listening(redis: LocalRedis, way: Channels) -> Iterator[None]:
    """Have a thread receive and discard what so many subscribed connections are sent."""
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        ours, theirs = (stack.enter_context(each) for each in socket.socketpair())
        selector.register(theirs, selectors.EVENT_READ)
        subscriptions = 0
        for seed in range(way.listeners):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(redis.path)
            words = ["SUBSCRIBE", *channels(way, seed)]
            subscriptions += len(words) - 1
            texts = (f"${len(word)}\r\n{word}\r\n" for word in words)
            connection.sendall(f"*{len(words)}\r\n{''.join(texts)}".encode())
            selector.register(connection, selectors.EVENT_READ)
        thread = threading.Thread(target=_discard, args=(selector, theirs))
        thread.start()
        try:
            while sum(int(each["sub"]) for each in redis.client.client_list(_type="pubsub")) < subscriptions:
                time.sleep(0.01)
            yield
        finally:
            ours.close()
            thread.join()


def _discard(selector: selectors.BaseSelector, end: socket.socket) -> None:
    while True:
        for key, _ in selector.select():
            connection: Any = key.fileobj
            connection.recv(1 << 20)
            if connection is end:
                return


def redis_us(redis: LocalRedis) -> float:
    used = redis.client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"]) * 1e6


def output_bytes(redis: LocalRedis) -> int:
    return int(redis.client.info("stats")["total_net_output_bytes"])


def cost(
    redis: LocalRedis, writer: Writer, way: Channels, batch: int, transitions: int
) -> tuple[float, float]:
    """Return µs of Redis per transition, and bytes sent per transition and listener."""
    with listening(redis, way):
        writer.write(min(WARM_UP, MAX_CALLS * batch), batch)
        transitions = min(transitions, MAX_CALLS * batch)
        before_us, before_bytes = redis_us(redis), output_bytes(redis)
        writer.write(transitions, batch)
        used_us, sent = redis_us(redis) - before_us, output_bytes(redis) - before_bytes
    return used_us / transitions, sent / transitions / max(1, way.listeners)


def redis_table(
    redis: LocalRedis, ways: Sequence[Channels], batches: Sequence[int], rounds: int, n: int
) -> str:
    found: dict[tuple[Channels, int], list[tuple[float, float]]] = {}
    with closing(Writer(redis.url)) as writer:
        for _ in range(rounds):
            for batch in batches:
                for way in ways:
                    found.setdefault((way, batch), []).append(cost(redis, writer, way, batch, n))
    rows = []
    for way in ways:
        cells = [
            f"{statistics.median(each[0] for each in found[way, batch]):.1f}"
            + (
                f", {statistics.median(each[1] for each in found[way, batch]):,.0f} B"
                if way.listeners
                else ""
            )
            for batch in batches
        ]
        rows.append(f"{way.listeners or ''} | {way.name} | {' | '.join(cells)}")
    head = "listening workers | each watches | " + " | ".join(f"batches of {each}" for each in batches)
    return markdown(head, rows)


async def received_us(redis: LocalRedis, batch: int, *, whole: bool, share: float) -> float:
    """Return µs of a worker per change of the shard that arrives: received, and decoded if it is watched."""
    servers = WatchServers(redis.url, KEYS)
    call: Callable[..., Any] = LoopCaller().call
    (server,) = (await call(lambda: servers.locate([0], anew=True))).values()
    channel = servers.channel(server)
    await call(channel.open)
    watched = set(random.Random(0).sample(UIDS, round(USERS * share)))
    channel.join(0, whole=whole)
    if not whole:
        channel.update_subscriptions(list(watched), ())
    count = 0
    while count < (1 if whole else len(watched)):
        count += len(await call(channel.receive))
    with closing(Writer(redis.url)) as writer:
        writer.write(RECEIVED, batch)
    expected, count = round(RECEIVED * share), 0
    started = time.process_time()
    while count < (RECEIVED if whole else expected):
        for message in await call(channel.receive):
            if isinstance(message, ShardChanges):
                count += len(message.changes)
                for uid, packed in message.changes:
                    if uid in watched:
                        read_change(uid, packed)
            elif isinstance(message, UserEvent):
                count += 1
    used = time.process_time() - started
    channel.close()
    return used * 1e6 / RECEIVED


def worker_table(redis: LocalRedis, shares: Sequence[float], batches: Sequence[int], rounds: int) -> str:
    rows = []
    for share in shares:
        for whole in (False, True):
            cells = []
            for batch in batches:
                runs = []
                for _ in range(rounds):
                    redis.client.flushall()
                    runs.append(trio.run(lambda: received_us(redis, batch, whole=whole, share=share)))  # noqa: B023
                cells.append(f"{statistics.median(runs):.2f}")
            rows.append(f"{share:.0%} | {'whole shard' if whole else 'users'} | {' | '.join(cells)}")
    head = "watched | subscribed to | " + " | ".join(f"batches of {each}" for each in batches)
    return markdown(head, rows)


def many_channels() -> tuple[list[str], list[str]]:
    """Return as many channels of users as a worker has at most, and those of whole shards."""
    keys = Keys(shards=SHARDS)
    users = [keys.user_channel(f"user-{i:06d}") for i in range(MAX_USER_CHANNELS)]
    return users, [keys.changes_channel(shard) for shard in range(SHARDS)]


def subscription_bytes(redis: LocalRedis, names: Sequence[str]) -> int:
    """Return the bytes of Redis for a connection that is subscribed to these channels."""
    redis.client.flushall()
    time.sleep(1)  # in which the server frees in the background
    before = redis.client.info("memory")["used_memory"]
    with closing(redis.client.pubsub()) as listener:
        for first in range(0, len(names), 1_000):
            listener.subscribe(*names[first : first + 1_000])
        for _ in names:
            listener.get_message(timeout=5)
        time.sleep(1)
        return int(redis.client.info("memory")["used_memory"] - before)


def read_us(redis: LocalRedis, reads: int) -> tuple[float, float]:
    """Return µs of Redis and of a worker per user whose state is read, in transactions; half are online."""
    with closing(Writer(redis.url)) as writer:
        writer.write(1, 1)
    record = redis.client.hget(KEYS.online(0), UIDS[0])
    uids = [f"user-{i:06d}" for i in range(RECORDS)]
    for first in range(0, RECORDS, 10_000):
        online, offline = uids[first : first + 5_000], uids[first + 5_000 : first + 10_000]
        redis.client.hset(KEYS.online(0), mapping=dict.fromkeys(online, record))
        redis.client.zadd(KEYS.seen(0), dict.fromkeys(offline, AT_MS))
        redis.client.hset(KEYS.left(0), mapping=dict.fromkeys(offline, f"100 {AT_MS}-0 0"))
    samples = [random.Random(n).sample(uids, MAX_USERS_PER_SNAPSHOT) for n in range(reads)]
    before_us, before = redis_us(redis), time.process_time()
    for each in samples:
        read_snapshot(redis.client, KEYS, 0, each)
    used_us, used = redis_us(redis) - before_us, time.process_time() - before
    users = reads * MAX_USERS_PER_SNAPSHOT
    return used_us / users, used * 1e6 / users


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--transitions", type=from_1, default=16_384, help="of each way and batch")
    parser.add_argument("--rounds", type=from_1, default=3)
    parser.add_argument("--batches", default="1,8,64,256")
    parser.add_argument("--listeners", default="1,6,54")
    parser.add_argument("--shares", default="0.02,0.2,1")
    parser.add_argument("--reads", type=from_1, default=200, help=f"of {MAX_USERS_PER_SNAPSHOT} users each")
    options = parser.parse_args()
    batches = [int(each) for each in options.batches.split(",")]
    shares = [float(each) for each in options.shares.split(",") if each]
    ways = [Channels(0, 0)]
    for listeners in (int(each) for each in options.listeners.split(",") if each):
        ways += [Channels(listeners, share) for share in shares]
        ways.append(Channels(listeners, 1, whole=True))
    redis = LocalRedis()
    try:
        print("Redis: µs per transition, and bytes per transition and listening worker\n", flush=True)
        print(redis_table(redis, ways, batches, options.rounds, options.transitions), flush=True)
        print("\nA worker: µs per change of the shard\n", flush=True)
        print(worker_table(redis, shares, batches, options.rounds), flush=True)
        in_users, in_shards = (subscription_bytes(redis, each) for each in many_channels())
        print(
            f"\nbytes of Redis for a worker with {MAX_USER_CHANNELS:,} channels of users: {in_users:,};"
            f" with those of {SHARDS} whole shards: {in_shards:,}"
        )
        in_redis, in_worker = read_us(redis, options.reads)
        print(f"\nreading a user: {in_redis:.1f} µs of Redis, {in_worker:.1f} of the worker")
    finally:
        redis.close()


if __name__ == "__main__":
    main()
