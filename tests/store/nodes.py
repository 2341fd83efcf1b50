"""A whole node without its tasks: sessions, outbox and writers, stepped by a test in virtual time."""

from collections import Counter as Tally
from collections.abc import Callable
from enum import Enum

from presence.core.changes import Change, Op
from presence.outbox.event_counts import Transitions
from presence.outbox.queue import Outbox
from presence.outbox.replies import Probe, Reply, Superseded
from presence.outbox.shard_writer import ShardWriter
from presence.outbox.steps import Batch, Retirement
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape

START_MS = 1_700_000_000_000


class Loss(Enum):
    """What happens to a call."""

    NONE = "none"
    REQUEST = "request"  # never reaches Redis
    REPLY = "reply"  # applied, but the answer is lost


class ManualNode:
    """A node as the relay runs it. `truth` is the naive model: the transitions of each user."""

    def __init__(
        self,
        url: str,
        node: str = "a",
        *,
        shards: int = 1,
        max_items: int = 1_000_000,
        alive: Callable[[str], bool] = lambda _node: True,
    ) -> None:
        self.keys = Keys(shards=shards)
        self.store = RedisStore(url, Shape(self.keys, maxlen=1_000_000, seen_retention_ms=10**13))
        self.outbox = Outbox(self.keys.shard, shards, max_items=max_items)
        self.node = node
        self.now = 1000.0
        self.live: dict[tuple[str, str], Change] = {}
        self.unheard: set[str] = set()  # users whose sessions have been silent too long to be registered
        self.truth: list[tuple[str, str]] = []
        self.superseded: list[Superseded] = []
        self.transitions = Transitions()
        self.lost: Tally[Loss] = Tally()
        self._sessions = 0
        self._devices: Tally[str] = Tally()
        self.writers = [
            ShardWriter(
                s, node, self.outbox, self._registrations, is_alive=alive, transitions=self.transitions
            )
            for s in range(shards)
        ]

    def _registrations(self, shard: int) -> list[Change]:
        live = [c for c in self.live.values() if self.keys.shard(c.uid) == shard]
        return [c._replace(op=Op.STALE) if c.uid in self.unheard else c for c in live]

    def _change(self, op: Op, uid: str, device: str, session: str, code: int) -> Change:
        self.now += 0.001
        at_ms = START_MS + round(self.now * 1000)
        return Change(op, uid, device, session, code, self.now, at_ms, at_ms, 30_000)

    def is_online(self, uid: str) -> bool:
        return self._devices[uid] > 0

    def login(self, uid: str, device: str = "") -> str:
        self._sessions += 1
        session = f"{self.node}-{self._sessions}"
        if not self.is_online(uid):
            self.truth.append(("online", uid))
        self._devices[uid] += (uid, device) not in self.live
        change = self._change(Op.LOGIN, uid, device, session, 1)
        self.live[uid, device] = change._replace(op=Op.REGISTER, code=2)
        self.outbox.append(change)
        return session

    def end(self, uid: str, device: str = "", code: int = 201) -> None:
        present = self.live.pop((uid, device), None)
        if present is None:
            return
        self._devices[uid] -= 1
        if not self.is_online(uid):
            self.truth.append(("offline", uid))
        self.outbox.append(self._change(Op.END, uid, device, present.session, code))

    def round(self, loss: Loss = Loss.NONE) -> bool:
        """Make one exchange; return whether there was anything to send."""
        planned = [(w, step) for w in self.writers if (step := self.next_step(w)) is not None]
        if not planned:
            return False
        self.lost[loss] += 1
        if loss is not Loss.NONE:
            for writer, _ in planned:
                writer.answer_lost()
        if loss is Loss.REQUEST:
            return True
        replies = self.store.apply([step for _, step in planned])
        if loss is Loss.REPLY:
            return True
        for (writer, step), reply in zip(planned, replies, strict=True):
            assert isinstance(reply, Reply), reply
            self.superseded += writer.accept_reply(step, reply)
        return True

    def next_step(self, writer: ShardWriter) -> Batch | Retirement | None:
        writer.prepare_step(self.now)
        while writer.needs_another_slice:
            writer.prepare_step(self.now)
        return writer.next_step(self.now)

    def probe(self) -> None:
        probes = self.store.probe(self.node, {w.shard: w.inbox_read for w in self.writers})
        for writer in self.writers:
            probe = probes[writer.shard]
            assert isinstance(probe, Probe), probe
            writer.accept_probe(probe, self.now)

    def settle(self) -> None:
        """Probe and exchange until nothing is left to send, passing the time that the writers wait."""
        for _ in range(4):
            self.probe()
            while self.round():
                self.now += 0.001
            self.now += 11.0

    @property
    def sessions(self) -> set[tuple[str, str, str]]:
        return {(c.uid, c.device, c.session) for c in self.live.values()}
