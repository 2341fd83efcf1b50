"""A shared timer in memory, on the clock of trio, for workers under test."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import trio

from presence.store.batches import StoreError
from presence.timers.interface import Due, Event

T = TypeVar("T")


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
        refused, refusal: a kind of call that is refused, and how.
        said: each call that changed something, and of which event.
    """

    lease_s: float = 30.0
    attempts_max: int = 5
    fail: Exception | None = None
    refused: str = ""
    refusal: Exception = field(default_factory=lambda: StoreError("NOPERM"))
    said: list[tuple[str, str]] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)

    def schedule(self, event: Event) -> bool:
        at = trio.current_time() + event.delay_s
        self.entries[event.id] = Entry(round(at * 1000), event.payload, ready_at=at)
        return True

    def schedule_many(self, events: Iterable[Event]) -> int:
        return sum(self.schedule(event) for event in events)

    def cancel(self, event_id: str) -> bool:
        return self.entries.pop(event_id, None) is not None

    def reschedule(self, event_id: str, delay_s: float) -> bool:
        raise NotImplementedError

    def due(self, limit: int = 100) -> Sequence[Due]:
        self._check()
        self.asked.append(limit)
        now = trio.current_time()
        ready = [(e.ready_at, name) for name, e in self.entries.items() if e.ready_at <= now]
        dues = []
        for _, name in sorted(ready)[:limit]:
            entry = self.entries[name]
            entry.attempt += 1
            entry.ready_at = now + self.lease_s
            late_ms = round(now * 1000) - entry.due_ms
            dues.append(Due(name, entry.payload, entry.due_ms, max(0, late_ms), entry.attempt))
        return dues

    def done(self, dues: Iterable[Due]) -> int:
        return sum(self._settle("done", due) for due in dues)

    def retry(self, due: Due, delay_s: float) -> bool:
        self._check()
        if self.refused == "retry":
            raise self.refusal
        entry = self._mine(due)
        if entry is None:
            return False
        self.said.append(("retry", due.id))
        entry.ready_at = trio.current_time() + delay_s
        if due.attempt >= self.attempts_max:
            self.dead.append(due.id)
            del self.entries[due.id]
        return True

    def extend(self, dues: Iterable[Due]) -> int:
        self._check()
        extended = 0
        for due in dues:
            if entry := self._mine(due):
                self.said.append(("extend", due.id))
                entry.ready_at = trio.current_time() + self.lease_s
                extended += 1
        return extended

    def give_back(self, dues: Iterable[Due]) -> int:
        self._check()
        returned = 0
        for due in dues:
            if entry := self._mine(due):
                self.said.append(("give_back", due.id))
                entry.ready_at = trio.current_time()
                returned += 1
        return returned

    def _settle(self, what: str, due: Due) -> bool:
        self._check()
        if self._mine(due) is None:
            return False
        self.said.append((what, due.id))
        del self.entries[due.id]
        return True

    def _mine(self, due: Due) -> Entry | None:
        entry = self.entries.get(due.id)
        return entry if entry and entry.attempt == due.attempt else None

    def _check(self) -> None:
        if self.fail is not None:
            raise self.fail


class AtOnce:
    """Makes calls where it is, so that time may jump while they are made."""

    async def call(self, blocking: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return blocking()
