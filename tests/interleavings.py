"""``python -m tests.interleavings --times 1000000``: late closes of replaced sessions, in all orders.

A user logs in twice or thrice, on one node or on several; the ends of the older connections are noticed at
any time later, in any order, with anything of other users between. None of them may end the user: one
online event, and one offline event for the logout at the end, is all that may be told. It is tried in the
memory of one node, with its clock and its ticks, and in a real Redis, by the batches of three nodes.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import protocol
from presence.changes import Change, Op
from presence.core import Core
from presence.embedded import embedded_redis
from presence.registry import Session
from presence.store.client import open_client
from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from presence.store.replies import Status
from protocol import Code
from tests.store.driving import Hand, end, login
from tests.worlds import GRACE, World

USERS = 500  # whose steps are shuffled into each other
PASSES = 6  # of time, among these steps: together longer than the grace
PASS_S = GRACE / 4
NODES = ("a", "b", "c")
PAUSE_SHARE = 0.3  # of the users do nothing while the nodes send a batch each
STREAM_MAX = 100_000
LOGOUT = protocol.encode(protocol.logout())

LateClose = Callable[[Core, Session], None]


class Tally(NamedTuple):
    """What came of it: interleavings, closes that came late, users told offline though they were online."""

    interleavings: int
    late: int
    wrong: int


def shuffled(rng: random.Random, stories: list[list[Any]]) -> Iterator[tuple[int, Any]]:
    """Yield the steps of all stories, each story's in order, as (story, step)."""
    turns = [number for number, story in enumerate(stories) for _ in story]
    rng.shuffle(turns)
    left = [iter(story) for story in stories]
    for number in turns:
        yield number, next(left[number])


def story(rng: random.Random) -> list[tuple[str, int]]:
    """Return logins and closes of a user's connections: a close follows the login that replaced it."""
    logins = rng.choice((2, 2, 3))
    steps = [("login", number) for number in range(logins)]
    for number in range(logins - 1):
        steps.insert(rng.randint(steps.index(("login", number + 1)) + 1, len(steps)), ("close", number))
    return steps


def in_memory(rng: random.Random, users: int, late_close: LateClose = Core.closed) -> Tally:
    """Play on one node's core; a transport tells it late of connections that it had hung up."""
    world = World()
    handles: list[list[int]] = [[] for _ in range(users)]
    peers: list[list[Session]] = [[] for _ in range(users)]
    stories = [story(rng) for _ in range(users)]
    waits = rng.sample(range(sum(map(len, stories))), PASSES)
    late = 0
    for turn, (user, (what, number)) in enumerate(shuffled(rng, stories)):
        if what == "login":
            handle = world.login(f"u{user}")
            peer = world.sockets.peers[handle]
            assert isinstance(peer, Session)
            handles[user].append(handle)
            peers[user].append(peer)
        else:
            late_close(world.core, peers[user][number])
            late += 1
        if turn in waits:
            world.pass_time(PASS_S)
    world.pass_time(GRACE + 1)
    ended = {change.uid for change in world.changes if change.op is Op.END}
    for user, uid in enumerate(f"u{user}" for user in range(users)):
        if uid not in ended:
            world.sockets.feed(handles[user][-1], LOGOUT)
    ends = [change for change in world.changes if change.op is Op.END]
    wrong = sum(change.code != Code.LOGOUT for change in ends)
    assert wrong or len(ends) == users
    return Tally(users, late, wrong)


class Shard:
    """A shard of a real Redis, and the nodes that write to it.

    Args:
        url: of the Redis.
        compared: whether a late end names the session that it ends; the guard that is tried.
    """

    def __init__(self, url: str, *, compared: bool = True) -> None:
        keys = Keys()
        self._store = RedisStore(url, Shape(keys, maxlen=STREAM_MAX, seen_retention_ms=1))
        self._client = open_client(url)
        self._key = keys.events(0)
        self._compared = compared
        self._played = 0
        self._nodes = {node: Hand(self._store, node) for node in NODES}
        for hand in self._nodes.values():
            assert hand.open().status is Status.OK

    def close(self) -> None:
        """Close the connections."""
        self._store.close()
        self._client.close()

    def play(self, rng: random.Random, users: int) -> Tally:
        """Let users move from node to node, and each node tell late of the sessions that have left it."""
        self._played += 1
        uids = [f"r{self._played}-{user}" for user in range(users)]
        steps = [story(rng) for _ in uids]
        nodes = [[rng.choice(NODES) for _ in range(3)] for _ in uids]
        present = [0] * users
        late = 0
        while any(steps):
            changes: dict[str, list[Change]] = {node: [] for node in NODES}
            for user, uid in enumerate(uids):
                if not steps[user] or rng.random() < PAUSE_SHARE:
                    continue
                what, number = steps[user].pop(0)
                if what == "login":
                    present[user] = number
                    changes[nodes[user][number]].append(login(uid, f"{uid}.{number}"))
                else:
                    named = number if self._compared else present[user]
                    changes[nodes[user][number]].append(end(uid, f"{uid}.{named}", code=Code.CLOSED))
                    late += 1
            self._apply(rng, changes)
        wrong = self._told("offline")
        changes = {node: [] for node in NODES}
        for user, uid in enumerate(uids):
            number = present[user]
            changes[nodes[user][number]].append(end(uid, f"{uid}.{number}", code=Code.LOGOUT))
        self._apply(rng, changes)
        assert wrong or (self._told("online") == self._told("offline") == users)
        self._client.xtrim(self._key, maxlen=0, approximate=False)
        return Tally(users, late, wrong)

    def _apply(self, rng: random.Random, changes: dict[str, list[Change]]) -> None:
        """Let each node send what it has, in any order of nodes."""
        for node in rng.sample(NODES, len(NODES)):
            if changes[node]:
                assert self._nodes[node].apply(*changes[node]).status is Status.OK

    def _told(self, kind: str) -> int:
        entries: Any = self._client.xrange(self._key)
        return sum(fields[b"type"] == kind.encode() for _, fields in entries)


def play(times: int, seed: int, round_of: Callable[[random.Random, int], Tally]) -> Tally:
    """Play so many interleavings."""
    rng = random.Random(seed)
    total = Tally(0, 0, 0)
    while (left := times - total.interleavings) > 0:
        total = Tally(*map(sum, zip(total, round_of(rng, min(USERS, left)), strict=True)))
    return total


def told(where: str, tally: Tally) -> str:
    """Return a tally in words."""
    played = f"{tally.interleavings:,} interleavings, {tally.late:,} late closes"
    return f"{where}: {played}, wrong offlines {tally.wrong}"


def main() -> int:
    """Play both; the exit status is 1 if anybody was ended wrongly."""
    parser = argparse.ArgumentParser(prog="python -m tests.interleavings", description=__doc__)
    parser.add_argument(
        "--times", type=int, default=100_000, help="interleavings, in memory and in Redis each"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    memory = play(options.times, options.seed, in_memory)
    print(told("in memory", memory), flush=True)
    with embedded_redis() as redis, closing(Shard(redis.url)) as shard:
        stored = play(options.times, options.seed, shard.play)
    print(told("in Redis", stored))
    return 1 if memory.wrong or stored.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
