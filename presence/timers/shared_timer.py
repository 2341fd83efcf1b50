"""Timers in Redis shared by any number of processes: adding, handing out and reporting events.

Every change is one script, and so is atomic; no state is kept outside Redis. After a lost answer, `schedule`
may be called again (a known id is left unchanged), `due` called again hands out the same events as the same
attempts, and `done` called again returns 0.
"""

import math
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from presence.common.backoff import backoff_s, jittered
from presence.store.script_runner import Call, Scripting
from presence.timers.interface import (
    MAX_DELAY_S,
    MAX_EVENTS,
    MAX_ID_BYTES,
    MAX_PAYLOAD_BYTES,
    Due,
    Event,
    TimerError,
    TimerFull,
    check_delay,
)

MAX_LEASE_S: Final = 86_400.0
MAX_ATTEMPTS: Final = 1000
MAX_ITEMS_PER_CALL: Final = 1000  # a few milliseconds of Redis
MAX_BYTES_PER_CALL: Final = 1 << 20  # of ids and payloads, roughly; one event more may exceed it


@dataclass(frozen=True, slots=True)
class Leasing:
    """How a timer hands out events.

    Args:
        lease_s: how long an event belongs to its worker, to the millisecond; longer than it takes to handle
            all events returned by one call of `due`.
        attempts_max: attempts before an event becomes a dead letter.
        backoff_s: pause after the first failed attempt; doubled by each further one,
        backoff_max_s: up to this.

    Raises:
        TimerError: a value is out of its bounds.
    """

    lease_s: float = 30.0
    attempts_max: int = 5
    backoff_s: float = 1.0
    backoff_max_s: float = 300.0

    def __post_init__(self) -> None:
        if not 0.001 <= self.lease_s <= MAX_LEASE_S:
            raise TimerError(f"lease_s {self.lease_s!r} is not between 0.001 and {MAX_LEASE_S:.0f}")
        if not 1 <= self.attempts_max <= MAX_ATTEMPTS:
            raise TimerError(f"attempts_max {self.attempts_max!r} is not between 1 and {MAX_ATTEMPTS}")
        if not 0 <= self.backoff_s <= self.backoff_max_s <= MAX_DELAY_S:
            raise TimerError("backoff_s is not between 0 and backoff_max_s, or that is too long")

    def pause_s(self, attempt: int) -> float:
        """Return the pause after a failed attempt: doubled each time, and half of it random.

        So events that failed together in an outage do not come back together.
        """
        return jittered(backoff_s(attempt - 1, self.backoff_s, self.backoff_max_s))


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that failed `attempts` times; times are Unix ms by Redis' clock."""

    id: str
    payload: bytes
    due_ms: int
    died_ms: int
    attempts: int


@dataclass(frozen=True, slots=True)
class TimerState:
    """The state of a timer."""

    waiting: int  # events not yet due
    leased: int  # events handed out, or pausing before a retry
    dead: int  # letters
    next_s: float | None  # seconds until something may be due; None: never
    # totals: scheduled, refused, cancelled, handed (first attempts), again (further attempts), returned
    # (given back), done, dead
    counts: Mapping[str, int]


class SharedTimer:
    """A timer in Redis that any number of processes share; subclasses index waiting events in different ways.

    At least once: an event handed out by `due` belongs to the caller for `Leasing.lease_s`; if it is not
    `done` by then, for example because the process died, it is handed out again. While no lease ends, each
    event is handed out once. After `Leasing.attempts_max` it is a dead letter: kept, listed, and not handed
    out any more. Events that another worker has claimed meanwhile are not changed: `done`, `retry`,
    `give_back` and `extend` return how many events still belonged to this caller.

    Times are those of Redis: if its clock is set forward, events are early and leases end. Events are lost
    with Redis' memory, or in a failover to a replica that did not have them yet.

    Calls block, raise `StoreUnavailable` or `StoreError` if Redis fails or refuses, and are not retried. Use
    it from one thread at a time, like its `Scripting`, which timers may share.

    Args:
        scripting: the connections.
        base: prefix of the keys, see `Keys.timer`; its hash tag puts them into one slot.
        leasing: how events are handed out; workers of one timer should agree, but need not.
        events_max: maximum of events, including dead letters.
        index: ARGV 1 of the scripts, and the name of KEYS 2; see `timers/prelude.lua`. By default a sorted
            set of due times.
    """

    def __init__(
        self,
        scripting: Scripting,
        base: str,
        leasing: Leasing | None = None,
        *,
        events_max: int = MAX_EVENTS,
        index: tuple[bytes, str] = (b"", "due"),
    ) -> None:
        self.leasing = leasing or Leasing()
        self._scripting = scripting
        self._events_max = events_max
        self._variant, index_name = index
        # See `timers/prelude.lua`; with the process id, because a fork has other answers outstanding.
        self._claim_base = f"{base}:claim:{secrets.token_hex(8)}"
        self._claim_number = 1  # of the next call that hands out events, until it is answered
        self._keys = [f"{base}:{name}" for name in ("work", index_name, "leased", "dead", "counts", "absent")]

    def schedule(self, event: Event) -> bool:
        """Add an event; return False, and change nothing, if its id exists.

        Raises:
            TimerError: it breaks a limit, or the timer is full.
        """
        return self.schedule_many([event]) == 1

    def schedule_many(self, events: Iterable[Event]) -> int:
        """Add events in calls of at most `MAX_ITEMS_PER_CALL`; return how many were added.

        Raises:
            TimerError: see `schedule`; events added before stay.
        """
        return sum(
            self._run_script("schedule", batch, self._events_max)[1] for batch in event_batches(events)
        )

    def cancel(self, event_id: str) -> bool:
        """Remove an event in any state, also a dead letter; return whether it existed."""
        return bool(self._run_script("cancel", checked_id(event_id))[1])

    def reschedule(self, event_id: str, delay_s: float) -> bool:
        """Make a waiting event due in `delay_s`; return False if it is unknown or was handed out."""
        return not self.reschedule_many([event_id], delay_s)

    def reschedule_many(self, event_ids: Iterable[str], delay_s: float) -> list[str]:
        """Make waiting events due in `delay_s`; return those that are unknown or were handed out."""
        after_ms = delay_ms(delay_s)
        return [
            name.decode()
            for batch in id_batches(event_ids)
            for name in self._run_script("reschedule", batch, after_ms)[1]
        ]

    def due(self, limit: int = 100) -> list[Due]:
        """Hand out events, earliest first: by due time, or by the end of their lease or pause.

        Fewer than `limit` if they are large, or if many slots of a ring have passed; none only if none is
        due. After a call whose answer was lost, those that it has handed out: they have lost no attempt.
        """
        self._check_limit(limit)
        return self._claim_due(limit)[0]

    def done(self, dues: Iterable[Due]) -> int:
        """Remove handled events."""
        return sum(self._run_script("done", batch)[1] for batch in claim_batches(dues))

    def extend(self, dues: Iterable[Due]) -> int:
        """Restart the leases of events that take longer."""
        return sum(self._run_script("extend", batch, self._lease_ms())[1] for batch in claim_batches(dues))

    def give_back(self, dues: Iterable[Due]) -> int:
        """Hand events out again that were not begun or were cut off, without counting this attempt."""
        return sum(self._run_script("give_back", batch)[1] for batch in claim_batches(dues))

    def retry(self, due: Due, delay_s: float | None = None) -> bool:
        """Hand a failed event out again after `delay_s`; after the last attempt it is a dead letter.

        Without `delay_s` the pause is `Leasing.pause_s`.
        """
        pause_s = self.leasing.pause_s(due.attempt) if delay_s is None else delay_s
        attempts_max = self.leasing.attempts_max
        return bool(
            self._run_script("retry", due.id, due.due_ms, due.attempt, delay_ms(pause_s), attempts_max)[1]
        )

    def dead(self, limit: int = 100, skip: int = 0) -> list[DeadLetter]:
        """List dead letters, oldest first, after skipping `skip`; fewer than `limit` if they are large.

        Raises:
            TimerError: `limit` is below 1, or `skip` below 0.
        """
        if limit < 1 or skip < 0:
            raise TimerError(f"limit {limit!r} is below 1, or skip {skip!r} below 0")
        flat = self._run_script("dead", skip, min(limit, MAX_ITEMS_PER_CALL))[1]
        return [
            DeadLetter(name.decode(), payload, due_ms, died_ms, attempt)
            for name, due_ms, attempt, payload, died_ms in zip(*[iter(flat)] * 5, strict=True)
        ]

    def requeue(self, event_ids: Iterable[str], delay_s: float = 0.0) -> int:
        """Schedule dead letters again, with all attempts; return how many existed."""
        after_ms = delay_ms(delay_s)
        return sum(self._run_script("requeue", batch, after_ms)[1] for batch in id_batches(event_ids))

    def purge(self, event_ids: Iterable[str]) -> int:
        """Delete dead letters; return how many existed."""
        return sum(self._run_script("requeue", batch, "")[1] for batch in id_batches(event_ids))

    def state(self) -> TimerState:
        """Return the state of the timer."""
        _, now_ms, next_ms, events, leased, dead, counts = self._run_script("state")
        return TimerState(
            waiting=events - leased - dead,
            leased=leased,
            dead=dead,
            next_s=max(0, next_ms - now_ms) / 1000 if next_ms else None,
            counts={name.decode(): n for name, n in zip(counts[::2], counts[1::2], strict=True)},
        )

    def _check_limit(self, limit: int) -> None:
        if not 1 <= limit <= MAX_ITEMS_PER_CALL:
            raise TimerError(f"limit {limit!r} is not between 1 and {MAX_ITEMS_PER_CALL}")

    def _claim_due(self, limit: int) -> tuple[list[Due], bool]:
        """Hand out due events, none only if none is due; return them, and whether more are due."""
        while True:
            # A call may find only dead letters, or empty slots of a ring: then try again.
            dues, is_more = self._run_claim_script("due", limit)
            if dues or not is_more:
                return dues, is_more

    def _run_claim_script(self, script: str, what: int | bytes) -> tuple[list[Due], bool]:
        """Run a script that hands out events; return them, and whether more are due."""
        claim = (f"{self._claim_base}:{os.getpid()}", self._claim_number)
        answer = self._run_script(script, what, self._lease_ms(), self.leasing.attempts_max, *claim)
        self._claim_number += 1
        _, now_ms, is_more, flat = answer
        dues = [
            Due(name.decode(), payload, due_ms, now_ms - due_ms, attempt)
            for name, due_ms, attempt, payload in zip(*[iter(flat)] * 4, strict=True)
        ]
        return dues, bool(is_more)

    def _lease_ms(self) -> int:
        return math.ceil(self.leasing.lease_s * 1000)

    def _run_script(self, script: str, *arguments: Any) -> Any:
        call = Call(f"timers/{script}", self._keys, [self._variant, *arguments])
        answer = msgpack.unpackb(self._scripting.one(call), raw=True)
        if answer[0] == b"full":
            raise TimerFull(f"the timer holds {answer[1]} events of {self._events_max}")
        if answer[0] == b"kind":
            raise TimerError(f"this timer is of another kind: {answer[1].decode()}")
        if answer[0] == b"ring":
            raise TimerError(
                f"this ring has {answer[1]} slots of {answer[2]} ms: the settings differ. If it should have "
                f"others: redis-cli DEL {self._keys[1]}"
            )
        return answer


# Arguments of the scripts, checked and packed in bounded batches


def delay_ms(delay_s: float) -> int:
    """Return a delay in whole milliseconds, rounded up; raises TimerError if it is out of bounds."""
    check_delay(delay_s)
    # 0.07 * 1000 is a little more than 70: a rounding error must not add a millisecond.
    return math.ceil(round(delay_s * 1000, 6))


def checked_id(event_id: str) -> str:
    """Return a valid id; raises TimerError for an invalid one."""
    try:
        size = len(event_id.encode())
    except UnicodeEncodeError:
        raise TimerError(f"an id that is no UTF-8: {event_id[:40]!r}") from None
    if not 1 <= size <= MAX_ID_BYTES:
        raise TimerError(f"an id has 1 to {MAX_ID_BYTES} bytes: {event_id[:40]!r}")
    return event_id


def event_batches(events: Iterable[Event]) -> Iterator[bytes]:
    """Pack events for schedule.lua, in batches bounded in items and bytes."""
    flat: list[object] = []
    size = 0
    for event_id, delay_s, payload in events:
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise TimerError(f"a payload has at most {MAX_PAYLOAD_BYTES} bytes: {event_id!r}: {len(payload)}")
        flat += (checked_id(event_id), delay_ms(delay_s), payload)
        size += len(event_id) + len(payload)
        if len(flat) == 3 * MAX_ITEMS_PER_CALL or size >= MAX_BYTES_PER_CALL:
            yield _pack(flat)
            flat, size = [], 0
    if flat:
        yield _pack(flat)


def _pack(values: Sequence[object]) -> bytes:
    packed: bytes = msgpack.packb(values, use_bin_type=False)  # Redis' Lua knows one kind of string
    return packed


def _packed(values: Sequence[object], step: int) -> Iterator[bytes]:
    return (_pack(values[first : first + step]) for first in range(0, len(values), step))


def claim_batches(dues: Iterable[Due]) -> Iterator[bytes]:
    """Pack id, due time and attempt of events that were handed out, in bounded batches."""
    flat = [value for due in dues for value in (due.id, due.due_ms, due.attempt)]
    return _packed(flat, 3 * MAX_ITEMS_PER_CALL)


def id_batches(event_ids: Iterable[str]) -> Iterator[bytes]:
    """Pack ids, in bounded batches."""
    return _packed([checked_id(each) for each in event_ids], MAX_ITEMS_PER_CALL)
