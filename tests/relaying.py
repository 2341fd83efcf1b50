"""A store in memory for a relay."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import trio

from presence.changes import Change, Op
from presence.comparison import Memory
from presence.runtime import Caller, TrioRuntime
from presence.store.batches import Batch, Counter, Step, StoreError, StoreUnavailable
from presence.store.replies import Opened, Probe, Reply, Stand, Status

T = TypeVar("T")

NOTHING = Memory(lambda: (), lambda _name: None)


class FakeStore:
    """Counters and applied items in memory.

    Attributes:
        fail: what all calls come to while it is set.
        away, refusing: shards whose calls come to nothing, and to a refusal.
    """

    def __init__(self) -> None:
        self.fail: StoreUnavailable | StoreError | None = None
        self.away: set[int] = set()
        self.refusing: set[int] = set()
        self.meta_away = False
        self.answers: list[StoreUnavailable | StoreError] = []  # stand for the next steps
        self.counters: dict[int, Counter] = {}
        self.fenced: set[str] = set()
        self.applied: list[Change] = []
        self.batches: list[Batch] = []
        self.probed: list[int] = []  # shards
        self.checks = 0

    def check_meta(self) -> None:
        self._fail()
        if self.meta_away:
            raise StoreUnavailable("away")
        self.checks += 1

    def _fail(self) -> None:
        if self.fail is not None:
            raise self.fail

    def apply(self, steps: Sequence[Step]) -> list[Reply | StoreUnavailable | StoreError]:
        if self.fail is not None:
            return [self.fail for _ in steps]
        return [self.answers.pop(0) if self.answers else self._reply(step) for step in steps]

    def _reply(self, step: Step) -> Reply | StoreUnavailable:
        if step.shard in self.away:
            return StoreUnavailable("away")
        if step.counter.node in self.fenced:
            return Reply(Status.FENCED, "history")
        if not isinstance(step, Batch):
            return Reply(Status.OK, "history")
        present = self.counters.get(step.shard)
        opened = None
        if step.opening:
            opened = Opened((Stand(present or Counter(step.opening.before, 0, 0)),), {})
        elif present is None or present.n + 1 != step.counter.n:
            return Reply(Status.UNKNOWN, "history")
        self.counters[step.shard] = step.counter
        self.batches.append(step)
        self.applied += [item.change for item in step.items]
        return Reply(Status.OK, "history", opened=opened)

    def probe(
        self, node: str, inbox_read: Mapping[int, int]
    ) -> dict[int, Probe | StoreUnavailable | StoreError]:
        if self.fail is not None:
            return dict.fromkeys(inbox_read, self.fail)
        self.probed += inbox_read
        none = Counter(node, 0, 0)
        failures: dict[int, Probe | StoreUnavailable | StoreError] = {
            **dict.fromkeys(self.away, StoreUnavailable("away")),
            **{shard: StoreError(f"NOPERM in {shard}") for shard in self.refusing},
        }
        return {
            s: failures.get(s)
            or Probe(s, "history", node in self.fenced, self.counters.get(s, none), "0-0", {}, 1, ())
            for s in inbox_read
        }

    def close(self) -> None:
        """Nothing is open."""


class AtOnce(TrioRuntime):
    """Calls are made between two steps of the loop, so that mock time waits for no thread."""

    def caller(self, interrupt: Callable[[], None]) -> Caller:  # type: ignore[override]  # as in `Runtime`
        return self

    async def call(self, blocking: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return blocking()


def login(uid: str, session: str = "s") -> Change:
    return Change(Op.LOGIN, uid, "", session, 1, 0.0, 1000, 1000, 30_000)
