"""A model of a consumer group: consumers that stop, die, stall and change names, on a real Redis.

The model writes events, lets consumers do what programs do, and checks each event that is handed out:

- order: an older event of the user that is still pending must be in the hands of the same consumer, belong to
  another live one (or have done so when this one got the newer event), wait for a delay, or have belonged to
  a consumer that died at most `BOUND_S` ago;
- deliveries: it says how often handlers were given it; more only if a consumer died while it was handed out.

At the end every event was acknowledged, or became a dead letter after `MAX_DELIVERIES`, or was trimmed.

Time is virtual: consumers get a clock, and `World.advance` makes pending entries that much older.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from presence.store.redis_client import Redis
from presence.store.shard_clients import ShardClients
from presence.subscriber import BlockingSubscription, Event, Gap, blocking, group_cursor
from presence.subscriber.events import decode_transition
from presence.subscriber.group import ConsumerOptions, GroupConsumer
from presence.subscriber.group_cursor import GroupCursor
from presence.subscriber.pending_entries import FREE_IDLE_MS, HANDED_BACK
from presence.subscriber.redis_connections import RedisConnections
from tests.subscriber.streams import Streams

CLAIM_IDLE_S = 60.0
BOUND_S = CLAIM_IDLE_S * 1.25
MAX_DELIVERIES = 3
SHARDS = 2
USERS = [f"user-{n}" for n in range(5)]
NAMES = ["pod-1", "pod-2", None]
MOST_ALIVE = 2
MANY = 10_000


@dataclass
class Consumer:
    """A consumer as the program sees it."""

    subscription: BlockingSubscription[Event]
    source: GroupConsumer
    auto_ack: bool
    hand: dict[str, Event] = field(default_factory=dict)  # handed out and not settled
    early: set[str] = field(default_factory=set)  # what it had when another one stopped beside it


class Broken(AssertionError):
    """A promise was broken."""


class World:
    """One run; `steps` are counted by kind."""

    def __init__(self, url: str, client: Redis, seed: int) -> None:
        self.url = url
        self.client = client
        self.chance = random.Random(seed)
        self.now = 0.0
        client.flushall()
        self.streams = Streams(client, SHARDS)
        self.streams.create_group()
        self.alive: list[Consumer] = []
        self.dead: set[str] = set()  # names of consumers that died; a stopped one is not among them
        self.user: dict[str, str] = {}  # by event
        self.acked: set[str] = set()
        self.doubtful: set[str] = set()  # acknowledged by a consumer that died; perhaps Redis was told
        self.trimmed: set[str] = set()
        self.delayed: set[str] = set()  # also by consumers that have ended
        self.given: Counter[str] = Counter()  # to handlers, by event
        self.doubts: Counter[str] = Counter()  # consumers that died while it was handed out
        self.letters: set[str] = set()
        self.fuse: tuple[int, bool] | None = None  # calls until one breaks, and whether it is performed
        self.steps: Counter[str] = Counter()

    # Steps

    def step(self) -> None:
        """Do one thing."""
        weights = {
            self.write: 6,
            self.poll: 14,
            self.start: 3,
            self.stop: 2,
            self.die: 1,
            self.die_in_a_call: 1,
            self.lose_an_answer: 1,
            self.refuse: 2,
            self.settle_one: 3,
            self.wait: 2,
            self.trim: 0.5,
        }
        (what,) = self.chance.choices([*weights], [*weights.values()])
        self.steps[what.__name__] += 1
        what()

    def write(self) -> None:
        """Users come and go."""
        some = [self.chance.choice(USERS) for _ in range(self.chance.randrange(1, 6))]
        self.user.update(zip(self.streams.write(*some), some, strict=True))

    def start(self) -> None:
        """A consumer begins, unless there are enough, or one of its name lives."""
        name = self.chance.choice(NAMES)
        if len(self.alive) < MOST_ALIVE and name not in [each.source.name for each in self.alive]:
            self.alive.append(self.open(name, auto_ack=self.chance.random() < 0.7))

    def open(self, name: str | None, *, auto_ack: bool = True) -> Consumer:
        options = ConsumerOptions("g", name, MAX_DELIVERIES, CLAIM_IDLE_S, self.chance.choice([1, 4, 20]))
        source = GroupConsumer(RedisConnections(self.url), "presence", options, clock=lambda: self.now)
        subscription = BlockingSubscription[Event](source, decode_transition, auto_ack=auto_ack)
        subscription._retry.succeeded()  # it waits for Redis
        return Consumer(subscription, source, auto_ack)

    def poll(self) -> None:
        """A consumer asks for events."""
        if self.alive:
            self.take(self.chance.choice(self.alive), self.chance.choice([1, 1, 1, 3, 10]))

    def take(self, consumer: Consumer, most: int) -> list[Event]:
        if consumer.auto_ack:
            self.acked.update(consumer.hand)
            consumer.hand.clear()
        found = consumer.subscription._poll(most)
        for event in found:
            self.check(consumer, event)
        self.check_letters()
        return found

    def stop(self) -> None:
        """A consumer stops; what it has not acknowledged comes again."""
        if self.alive:
            self.end(self.alive.pop(self.chance.randrange(len(self.alive))))

    def end(self, consumer: Consumer) -> None:
        if self.chance.random() < 0.3:
            consumer.subscription.drain()
            self.take(consumer, 1)
        consumer.subscription.close()
        self.check_letters()
        if consumer.source._membership.has_begun:
            self.dead.discard(consumer.source.name)
        self.note_early()

    def note_early(self) -> None:
        """Note what live consumers have while another one beside them hands back older events."""
        for other in self.alive:
            other.early |= {entry_id for _, entry_id in other.source._entries.states()}

    def die(self) -> None:
        """A consumer dies between two calls."""
        if self.alive:
            self.bury(self.alive.pop(self.chance.randrange(len(self.alive))))

    def bury(self, consumer: Consumer) -> None:
        consumer.source.close()
        self.dead.add(consumer.source.name)
        # What it had acknowledged comes again, unless Redis was told.
        unsent = {entry_id for _, entry_id in consumer.source._pending._acks} & self.acked
        self.acked -= unsent
        self.doubtful |= unsent
        self.doubts.update(entry_id for _, entry_id in consumer.source._entries.perhaps_counted())

    def die_in_a_call(self) -> None:
        """A consumer dies in the middle of its next calls."""
        if not self.alive:
            return
        consumer = self.alive.pop(self.chance.randrange(len(self.alive)))
        self.fuse = self.chance.randrange(6), self.chance.random() < 0.5
        if self.chance.random() < 0.3:
            consumer.subscription.close()
        else:
            self.take(consumer, self.chance.choice([1, 3]))
        self.fuse = None
        self.bury(consumer)
        self.note_early()  # it may have died when it had handed back

    def lose_an_answer(self) -> None:
        """A consumer loses its connection in one of its next calls, and lives."""
        if self.alive:
            self.fuse = self.chance.randrange(6), self.chance.random() < 0.5
            self.take(self.chance.choice(self.alive), 1)
            self.fuse = None

    def refuse(self) -> None:
        """A handler fails."""
        for consumer in self.alive:
            if consumer.hand:
                entry_id = self.chance.choice([*consumer.hand])
                delay_s = self.chance.choice([0, 0, 10, 200])
                if delay_s:
                    self.delayed.add(entry_id)
                consumer.subscription.nak(consumer.hand.pop(entry_id), delay_s, "not now")
                return

    def settle_one(self) -> None:
        """A handler succeeds, or gives up for good."""
        for consumer in self.alive:
            if consumer.hand:
                entry_id = self.chance.choice([*consumer.hand])
                event = consumer.hand.pop(entry_id)
                if self.chance.random() < 0.1:
                    consumer.subscription.term(event, "never")
                    self.doubts[entry_id] += MAX_DELIVERIES
                else:
                    consumer.subscription.ack(event)
                    self.acked.add(entry_id)
                return

    def wait(self) -> None:
        """Time passes, in which consumers do nothing."""
        self.advance(self.chance.choice([1, 10, 25, 50, 70, 100]))

    def trim(self) -> None:
        """The cap removes the oldest entry of a stream."""
        key = self.streams.keys.events(self.chance.randrange(SHARDS))
        oldest: Any = self.client.xrange(key, count=1)
        if oldest:
            self.trimmed.add(oldest[0][0].decode())
            self.client.xdel(key, oldest[0][0])

    def advance(self, seconds: float) -> None:
        """Let virtual time pass: for the clocks of consumers, pending entries and locks of names."""
        self.now += seconds
        ms = round(seconds * 1000)
        with self.client.pipeline(transaction=False) as pipe:
            for shard in range(SHARDS):
                key = self.streams.keys.events(shard)
                for row in self.rows(shard):
                    entry_id, idle_ms = row["message_id"], row["time_since_delivered"]
                    if idle_ms < FREE_IDLE_MS and entry_id.decode() not in self.trimmed:
                        pipe.xclaim(key, "g", row["consumer"], 0, [entry_id], idle=idle_ms + ms, justid=True)
            pipe.execute()
        for key in self.client.scan_iter("presence:*:consumer:*"):
            self.client.pexpire(key, self.client.pttl(key) - ms)

    # Promises

    def rows(self, shard: int) -> list[Any]:
        found: Any = self.client.xpending_range(self.streams.keys.events(shard), "g", "-", "+", MANY)
        return list(found)

    def check(self, consumer: Consumer, event: Event) -> None:
        """Check an event that was handed out, and put it into the hands of the program."""
        self.dead.discard(consumer.source.name)
        if isinstance(event, Gap):
            return
        for row in self.rows(event.shard):
            older = row["message_id"].decode()
            if int(older[:-2]) < int(event.id[:-2]) and self.user[older] == event.uid:
                self.check_older(consumer, older, row, event)
        self.given[event.id] += 1
        least, most = self.given[event.id], self.given[event.id] + self.doubts[event.id]
        if not least <= event.deliveries <= most:
            raise Broken(f"{event.id}: {event.deliveries} deliveries, handlers got it {least} times")
        self.delayed.discard(event.id)
        consumer.hand[event.id] = event

    def check_older(self, consumer: Consumer, older: str, row: Any, event: Any) -> None:
        name = row["consumer"].decode()
        others = [each.source.name for each in self.alive if each is not consumer]
        is_excused = (
            older in consumer.hand
            or older in self.delayed
            or older in self.trimmed
            or name in others
            or (name == HANDED_BACK and event.id in consumer.early)
            or (name in self.dead and row["time_since_delivered"] <= BOUND_S * 1000)
        )
        if not is_excused:
            idle_s = row["time_since_delivered"] / 1000
            raise Broken(
                f"{event.id} of {event.uid} came before {older}, pending for {name} since {idle_s} s"
            )

    def check_letters(self) -> None:
        for letter in self.streams.dead():
            entry_id = letter["original_id"]
            if entry_id in self.letters:
                continue
            self.letters.add(entry_id)
            if self.given[entry_id] + self.doubts[entry_id] < MAX_DELIVERIES:
                raise Broken(f"{entry_id} is a dead letter after {self.given[entry_id]} calls of a handler")
            self.acked.add(entry_id)

    def finish(self) -> None:
        """Stop everything; let one consumer handle what is left; check that nothing is lost."""
        self.steps["finish"] += 1
        while self.alive:
            self.stop()
        last = self.open(None)
        self.alive.append(last)
        for _ in range(40):
            while self.take(last, 10):
                pass
            if not sum(len(self.rows(shard)) for shard in range(SHARDS)):
                break
            self.advance(30.0)
        self.stop()
        if lost := self.user.keys() - self.acked - self.doubtful - self.trimmed:
            raise Broken(f"lost: {sorted(lost)}")


@contextmanager
def planted_calls(patch: pytest.MonkeyPatch) -> Iterator[list[World]]:
    """Let the calls of consumers break off when a world's fuse says so; shorten waits to nothing."""
    worlds: list[World] = []

    def breaking(call: Any) -> Any:
        def wrapped(*arguments: Any, **more: Any) -> Any:
            world = worlds[-1]
            if world.fuse is None:
                return call(*arguments, **more)
            left, is_performed = world.fuse
            world.fuse = (left - 1, is_performed) if left else None
            if left:
                return call(*arguments, **more)
            if is_performed:
                call(*arguments, **more)
            raise RedisConnectionError("broken off")

        return wrapped

    patch.setattr(group_cursor, "BLOCK_MS", 1)
    patch.setattr(blocking, "BLOCK_MS", 1)
    patch.setattr(blocking, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None))
    for of, name in ((ShardClients, "ask"), (ShardClients, "exchange"), (GroupCursor, "_read_blocking")):
        patch.setattr(of, name, breaking(getattr(of, name)))
    yield worlds


def run(url: str, client: Redis, patch: pytest.MonkeyPatch, *, seed: int, steps: int) -> Counter[str]:
    """Run one world; return what was done."""
    with planted_calls(patch) as worlds:
        world = World(url, client, seed)
        worlds.append(world)
        try:
            for _ in range(steps):
                world.step()
            world.finish()
        except Broken as broken:
            raise Broken(f"seed {seed}, step {world.steps.total()}: {broken}") from broken
        return world.steps
