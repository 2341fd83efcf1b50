"""A shared timer in memory, on the clock of trio, for workers under test."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from presence.store.batches import StoreError
from presence.timers.interface import Due, Event


@dataclass
class Entry:
    due_ms: int
    payload: bytes
    attempt: int = 0
    ready_at: float = 0.0


@dataclass
class FakeTimer:
    """A `LeasedTimer` of one test: what it hands out, and what it was told.

    Attributes:
        fail: what every call comes to while it is set.
        part: how many events a claim hands out at most.
        refused, refusal: a kind of call that is refused, and how.
        said: each call that changed something, and of which event.
        asked: how many events each claim asked for.
        before_answer: called by a claim once it has been carried out.
    """

    lease_s: float = 30.0
    attempts_max: int = 5
    fail: Exception | None = None
    part: int = 1000
    refused: str = ""
    refusal: Exception = field(default_factory=lambda: StoreError("NOPERM"))
    said: list[tuple[str, str]] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    before_answer: Callable[[], object] = lambda: None

    def schedule(self, *events: Event) -> None:
        for event in events:
            at = trio.current_time() + event.delay_s
            self.entries[event.id] = Entry(round(at * 1000), event.payload, ready_at=at)

    def due(self, limit: int = 100) -> Sequence[Due]:
        self._check("due")
        self.asked.append(limit)
        now = trio.current_time()
        ready = [(e.ready_at, name) for name, e in self.entries.items() if e.ready_at <= now]
        dues = []
        for _, name in sorted(ready)[: min(limit, self.part)]:
            entry = self.entries[name]
            entry.attempt += 1
            entry.ready_at = now + self.lease_s
            late_ms = round(now * 1000) - entry.due_ms
            dues.append(Due(name, entry.payload, entry.due_ms, max(0, late_ms), entry.attempt))
        self.before_answer()
        return dues

    def done(self, dues: Iterable[Due]) -> int:
        return len([self.entries.pop(due.id) for due, _ in self._ours("done", dues)])

    def retry(self, due: Due, delay_s: float) -> bool:
        ours = self._ours("retry", [due])
        for _, entry in ours:
            entry.ready_at = trio.current_time() + delay_s
            if due.attempt >= self.attempts_max:
                self.dead.append(due.id)
                del self.entries[due.id]
        return bool(ours)

    def extend(self, dues: Iterable[Due]) -> int:
        ours = self._ours("extend", dues)
        for _, entry in ours:
            entry.ready_at = trio.current_time() + self.lease_s
        return len(ours)

    def give_back(self, dues: Iterable[Due]) -> int:
        ours = self._ours("give_back", dues)
        for _, entry in ours:
            entry.ready_at = trio.current_time()
        return len(ours)

    def _ours(self, what: str, dues: Iterable[Due]) -> list[tuple[Due, Entry]]:
        self._check(what)
        found = [(due, self.entries[due.id]) for due in dues if due.id in self.entries]
        ours = [(due, entry) for due, entry in found if entry.attempt == due.attempt]
        self.said += [(what, due.id) for due, _ in ours]
        return ours

    def _check(self, what: str) -> None:
        if self.fail is not None:
            raise self.fail
        if self.refused == what:
            raise self.refusal


class AtOnce:
    """Makes calls where it is, so that time may jump while they are made."""

    async def call(self, blocking: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return blocking()
