"""Calls of the store whose answers can be told apart: each is of one node, and nobody else's is the same.

A node opens a generation of its own number, so that a probe shows whose it is; and the id of the event that
a batch has written is compared with the stream in the end.
"""

import random
import time
from collections.abc import Callable, Mapping
from typing import Final

from presence.changes import Change, Op
from presence.store.batches import Batch, Counter, Item, Opening, Step
from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from presence.store.replies import Probe, Reply, Status
from protocol import Code

SHARDS: Final = 4
NODES: Final = 12
FIRST_GENERATION: Final = 1000  # so that it is no other number of an answer
IDLE_TIMEOUT_MS: Final = 30_000
SHAPE: Final = Shape(Keys(shards=SHARDS), maxlen=10_000_000, seen_retention_ms=86_400_000)

Check = Callable[[], str]
"""Takes an answer that came whole; returns what is wrong with it, or ""."""


class Talker:
    """A node with one user who logs in and out, a batch each.

    Attributes:
        uid: the user.
        shard: where the node talks.
        written: entry ids that it was told, and what each is of.
        newest: the number of its last batch whose answer came.
    """

    def __init__(self, number: int) -> None:
        self.uid = f"user{number}"
        self.shard = number % SHARDS
        self.written: dict[str, str] = {}
        self.newest = 0
        self._node = f"node{number}"
        self._generation = FIRST_GENERATION + number
        self._replication_id = ""

    def call(self, store: RedisStore) -> tuple[Callable[[], object], Callable[[object], str]]:
        """Return a call, and what tells what is wrong with its answer."""
        kind = random.random()
        if kind < 0.6 or not self.newest:
            step = self._step()
            return lambda: store.apply([step]), self._judge_reply
        if kind < 0.95:
            wanted = dict.fromkeys(random.sample(range(SHARDS), random.randint(1, SHARDS)), 0)
            wanted[self.shard] = 0
            return lambda: store.probe(self._node, wanted), self._judge_probes
        return store.check_meta, lambda answer: "" if answer is None else f"not for check_meta: {answer}"

    def _step(self) -> Step:
        """Return the next batch; the same again until its answer came."""
        n, now, now_ms = self.newest + 1, time.monotonic(), round(time.time() * 1000)
        counter = Counter(self._node, self._generation, n)
        if n == 1:
            return Batch(self.shard, counter, "", (), now, opening=Opening(self._node))
        op, code = (Op.LOGIN, Code.LOGIN) if n % 2 == 0 else (Op.END, Code.LOGOUT)
        change = Change(op, self.uid, "", f"{self.uid}-{n // 2}", code, now, now_ms, now_ms, IDLE_TIMEOUT_MS)
        return Batch(self.shard, counter, self._replication_id, (Item(change),), now)

    def _judge_reply(self, answer: object) -> str:
        match answer:
            case [Reply(status=Status.OK) as reply]:
                opens, last = self.newest == 0, next(reversed(self.written), "")
                if (reply.opened is not None) is not opens or (reply.last_id in {"", last}) is not opens:
                    return f"no answer to batch {self.newest + 1}: {reply}"
                self.newest += 1
                self._replication_id = reply.replication_id
                if not opens:
                    self.written[reply.last_id] = "online" if self.newest % 2 == 0 else "offline"
                return ""
        return f"no answer to a batch: {answer}"

    def _judge_probes(self, answer: object) -> str:
        match answer:
            case {self.shard: Probe(counter=Counter(_, self._generation, n))}:
                # One more than known: of a batch that was carried out though its call was interrupted.
                return "" if n in {self.newest, self.newest + 1} else f"number {n}, not {self.newest}"
        return f"not of {self._node}: {answer}"

    def misfits(self, entries: Mapping[str, tuple[str, str]]) -> list[str]:
        """Return what of `written` is not in the stream as entry id to (uid, type), or another's."""
        return [
            f"{self.uid} was told {entry_id}, {entries.get(entry_id)}"
            for entry_id, kind in self.written.items()
            if entries.get(entry_id) != (self.uid, kind)
        ]
