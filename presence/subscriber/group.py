"""Reading all streams as one consumer of a group: at least once, shared with the group's other consumers.

Redis keeps an entry as *pending* for the consumer that it was given to, until it is acknowledged. Three
things can become of a pending entry:

- its consumer settles it: acknowledged;
- its consumer dies or leaves it: after `claim_idle_s` without a sign of life any consumer claims it. Entries
  that wait in this consumer's memory are renewed meanwhile, so that only the dead are robbed;
- it was delivered `max_deliveries` times and is still pending: it becomes a dead letter, in one transaction.

Redis counts deliveries. New entries are read ahead, which counts as a delivery for those that nobody has
looked at yet; so a *redelivery* is claimed one by one, at the moment at which it is handed out. Otherwise
each crash of a consumer on a poisoned event would also count against its innocent neighbours.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from presence.common.redaction import redact_text
from presence.store.client import RedisError
from presence.store.error_classes import code_of
from presence.store.keys import Keys
from presence.store.shard_clients import ShardClients
from presence.subscriber.connection import BLOCK_MS, PollInterval, RedisConnections, Shards, Source, log
from presence.subscriber.cursor import GroupCursor, unless_missing
from presence.subscriber.events import Entry, Gap, Item, id_order, read_entry

ROWS_PER_LOOK = 100  # pending entries looked at in one call, of each shard
DEAD_LETTERS_MAX = 100_000  # of each shard, roughly: some 40 MB; somebody should have looked long before
ERROR_MAX_CHARS = 500
_NO_WORD = "its consumer died, or left the loop without a word"


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Which consumer of which group, and how it treats what is not acknowledged; see `subscribe`.

    No two consumers that live at once may share a name; one that keeps its name over a restart goes on at
    once with what it had not acknowledged.
    """

    group: str
    consumer: str
    max_deliveries: int = 5
    claim_idle_s: float = 60.0
    prefetch: int = 100  # entries read ahead, over all shards

    def __post_init__(self) -> None:
        if not (self.group and self.consumer):
            raise ValueError("a consumer group needs the names of group and consumer")
        if self.max_deliveries < 1 or self.prefetch < 1 or self.claim_idle_s <= 0:
            raise ValueError("max_deliveries, prefetch and claim_idle_s must be above zero")


class Redelivery(NamedTuple):
    """A pending entry that is to be delivered again; `min_idle_ms` 0 where it is this consumer's own."""

    shard: int
    id: str
    min_idle_ms: int = 0


class GroupConsumer(Source[Item]):
    """A source of items from all streams, each of which is settled before the next is taken.

    Args:
        start: where a group begins that is created now: after this entry id, ``0`` for all that is kept,
            None for new events only.
        kind: names of the streams, if they are not those of events.
    """

    def __init__(
        self,
        link: RedisConnections,
        prefix: str,
        member: ConsumerOptions,
        start: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        kind: type[Keys] = Keys,
    ) -> None:
        super().__init__(link)
        self._member = member
        self._clock = clock
        self._shards = Shards(prefix, kind)
        self._place = GroupCursor(self._shards, member.group, start)
        self._pending = PendingEntries(self._shards, member)
        self._looks = PollInterval()
        self._taken_up = 0  # shards
        self._has_begun = False
        self._known_losses = -1
        self._unchecked: set[int] = set()  # shards whose next read might cross a gap
        self._unheard: set[int] = set()  # shards of which an answer may have been lost
        self._next_claims = clock() + member.claim_idle_s / 4
        self._renewed = clock()
        self._buffer: deque[Item] = deque()
        self._again: deque[Redelivery] = deque()  # to be delivered anew, claimed when they are
        self._current: Entry | None = None

    def take(self) -> Item | None:
        """See `Source`."""
        item = self._buffer.popleft() if self._buffer else None
        self._current = item if isinstance(item, Entry) else None
        return item

    def settle(self) -> None:
        """See `Source`."""
        if self._current is not None:
            self._pending.handled(self._current)
            self._current = None

    def reenter(self) -> None:
        """See `Source`."""
        if self._current is not None:
            self._again.appendleft(Redelivery(self._current.shard, self._current.id))
            self._current = None

    def fail(self, error: str) -> None:
        """See `Source`."""
        if self._current is not None:
            self._pending.failed(self._current, error)
            self._current = None

    def leave(self, error: str) -> None:
        """See `Source`."""
        if self._current is not None:
            self._pending.failed(self._current, error)
            self.reenter()

    def fetch(self) -> None:
        """See `Source`; it takes about `BLOCK_MS` at most."""
        try:
            self._link.turn(self._fetch, self._shards)
        except RedisError as error:
            # Emptied in the middle of a turn: the next one, on a new connection, makes the group again.
            if code_of(error) != "NOGROUP" and "no such key" not in str(error):
                raise

    def _fetch(self, access: ShardClients) -> None:
        self._prepare(access)
        self._pending.flush(access)
        self._renew(access)
        again = self._next_again(access)
        if again and not again.min_idle_ms and not self._has_redelivery():
            self._redeliver(access)  # its own older ones go before what it has read ahead
        if not self._buffer:
            self._take_up_unheard(access)
        if not self._buffer and self._clock() >= self._next_claims:
            self._look_for_the_dead(access)
        if not self._buffer and self._again:
            self._redeliver(access)
        if not self._buffer:
            self._read_new(access)

    def flush(self) -> None:
        """See `Source`."""
        with self._link.calling() as access:
            access.readmit(is_early=True)
            self._pending.flush(access)

    def _prepare(self, access: ShardClients) -> None:
        for shard in self._shards.after(self._taken_up, access):
            self._place.join(access, shard, is_late=self._has_begun)
            self._again.extend(self._pending.own(access, shard))
            self._taken_up = shard + 1
        reachable = set(access.reachable(self._shards.keys))
        if self._known_losses != self._link.losses:
            self._unchecked = set(range(self._taken_up))
            self._unheard = set(range(self._taken_up)) if self._has_begun else set()
            self._known_losses = self._link.losses
        self._has_begun = True
        if due := self._unchecked & reachable:
            # Before anything is read: a gap that this consumer does not live to tell is found again.
            self._buffer.extendleft(self._place.check(access, due))
            self._unchecked -= due

    def _take_up_unheard(self, access: ShardClients) -> None:
        """Deliver again what Redis gave to this consumer in an answer that was lost with its connection."""
        known = {(waiting.shard, waiting.id) for waiting in self._again}
        for shard in self._unheard.intersection(access.reachable(self._shards.keys)):
            unheard = self._pending.own(access, shard, self._place.seen(shard))
            self._again.extend(each for each in unheard if (shard, each.id) not in known)
            self._unheard.discard(shard)

    def _next_again(self, access: ShardClients) -> Redelivery | None:
        reachable = set(access.reachable(self._shards.keys))
        return next((waiting for waiting in self._again if waiting.shard in reachable), None)

    def _renew(self, access: ShardClients) -> None:
        now = self._clock()
        held = [item for item in self._buffer if isinstance(item, Entry)]
        if not held:
            self._renewed = now
        elif now - self._renewed > self._member.claim_idle_s / 3:
            ours = self._pending.renew(access, held)
            self._buffer = deque(i for i in self._buffer if isinstance(i, Gap) or (i.shard, i.id) in ours)
            self._renewed = now

    def _look_for_the_dead(self, access: ShardClients) -> None:
        known = {(waiting.shard, waiting.id) for waiting in self._again}
        stale, is_all = self._pending.stale(access)
        self._again.extend(waiting for waiting in stale if (waiting.shard, waiting.id) not in known)
        self._next_claims = self._clock() + (self._member.claim_idle_s / 4 if is_all else 0.0)

    def _has_redelivery(self) -> bool:
        return any(isinstance(item, Entry) and item.deliveries > 1 for item in self._buffer)

    def _redeliver(self, access: ShardClients) -> None:
        """Claim the next entry that is to be delivered again; tell once of those that were trimmed."""
        missing: dict[int, Gap] = {}
        found = None
        try:
            while found is None and (waiting := self._next_again(access)):
                claimed = self._pending.claim(access, waiting)
                self._again.remove(waiting)
                if isinstance(claimed, Gap):
                    before = missing.get(claimed.shard)
                    missing[claimed.shard] = _joined(before, claimed) if before else claimed
                else:
                    found = claimed
        finally:
            if found is not None:
                self._buffer.appendleft(found)
            self._buffer.extendleft(missing.values())

    def _read_new(self, access: ShardClients) -> None:
        count = max(1, self._member.prefetch // self._shards.keys.shards)
        gaps, entries = self._place.read(access, self._member.consumer, count)
        if not (gaps or entries):
            entries = self._wait(access, count)
        entries.sort(key=lambda entry: (*id_order(entry.id), entry.shard))
        self._place.saw(entries)
        self._buffer.extend([*gaps, *entries])
        self._renewed = self._clock()

    def _wait(self, access: ShardClients, count: int) -> list[Entry]:
        """Wait for new entries, for about `BLOCK_MS`; return those that came."""
        if not access.is_cluster:
            return self._read_blocking(access, count)
        return self._looks.wait(BLOCK_MS / 1000, access, lambda: self._read_each(access, count))

    def _read_blocking(self, access: ShardClients, count: int) -> list[Entry]:
        keys, member = self._shards.keys, self._member
        names = {keys.events(shard).encode(): shard for shard in range(keys.shards)}
        streams: dict[Any, Any] = dict.fromkeys(names, ">")
        client = access.at(keys.events(0))
        try:
            answer: Any = client.xreadgroup(
                member.group, member.consumer, streams, count=count, block=BLOCK_MS
            )
        except RedisError as error:
            if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                raise
            return []  # Redis was emptied; the next look finds out
        return [read_entry(names[name], raw) for name, found in answer or () for raw in found]

    def _read_each(self, access: ShardClients, count: int) -> list[Entry]:
        keys, member = self._shards.keys, self._member

        def fill(pipe: Any, shard: int) -> None:
            pipe.xreadgroup(member.group, member.consumer, {keys.events(shard): ">"}, count=count)

        answers = access.ask(keys, access.reachable(keys), fill, raise_on_error=False)
        return [
            read_entry(shard, raw)
            for shard, (answer,) in answers.items()
            for _, found in unless_missing(answer) or ()  # a shard was emptied; the next look finds out
            for raw in found
        ]


def _joined(one: Gap, other: Gap) -> Gap:
    return Gap(one.shard, one.id, one.reason, dropped=(one.dropped or 0) + (other.dropped or 0))


# What was given to this consumer and has not been acknowledged


class PendingEntries:
    """The pending entries of one group, seen from one consumer. All calls raise `RedisError`."""

    def __init__(self, shards: Shards, member: ConsumerOptions) -> None:
        self._shards = shards
        self._member = member
        self._handled: list[Entry] = []
        self._errors: dict[tuple[int, str], str] = {}

    def handled(self, entry: Entry) -> None:
        """Acknowledge the entry with the next `flush`."""
        self._handled.append(entry)

    def failed(self, entry: Entry, error: str) -> None:
        """Keep with the next `flush` why the entry was not handled, for the case that it is given up."""
        self._errors[entry.shard, entry.id] = redact_text(error)[:ERROR_MAX_CHARS]

    def flush(self, access: ShardClients) -> None:
        """Send acknowledgements and errors. If it fails, call it again: nothing is lost or done twice."""
        if not (self._handled or self._errors):
            return
        keys, group = self._shards.keys, self._member.group
        acknowledged, noted = _by_shard(self._handled), self._errors
        due = {*acknowledged, *(shard for shard, _ in noted)}.intersection(access.reachable(keys))

        def fill(pipe: Any, shard: int) -> None:
            for entry in acknowledged.get(shard, ()):
                pipe.xack(keys.events(shard), group, entry.id)
                if entry.deliveries > 1:
                    pipe.hdel(keys.errors(shard, group), entry.id)
            for (of, entry_id), error in noted.items():
                if of == shard:
                    pipe.hset(keys.errors(shard, group), entry_id, error)

        access.ask(keys, due, fill)
        self._handled = [entry for entry in self._handled if entry.shard not in due]
        self._errors = {name: error for name, error in noted.items() if name[0] not in due}

    def own(self, access: ShardClients, shard: int, after: str | None = None) -> list[Redelivery]:
        """Return what this consumer was given after an entry and has not acknowledged, oldest first."""
        key = self._shards.keys.events(shard)
        client = access.at(key)
        found: list[Redelivery] = []
        begin = f"({after}" if after else "-"
        while True:
            rows: Any = client.xpending_range(
                key, self._member.group, begin, "+", ROWS_PER_LOOK, consumername=self._member.consumer
            )
            found += [Redelivery(shard, row["message_id"].decode()) for row in rows]
            if len(rows) < ROWS_PER_LOOK:
                return found
            begin = f"({found[-1].id}"

    def stale(self, access: ShardClients) -> tuple[list[Redelivery], bool]:
        """Return entries whose consumer is silent, oldest first in each shard, and whether these are all."""
        keys, idle_ms = self._shards.keys, self._idle_ms

        def fill(pipe: Any, shard: int) -> None:
            key = keys.events(shard)
            pipe.xpending_range(key, self._member.group, "-", "+", ROWS_PER_LOOK, idle=idle_ms)

        answers = access.ask(keys, access.reachable(keys), fill)
        found = [
            Redelivery(shard, row["message_id"].decode(), idle_ms)
            for shard, (rows,) in answers.items()
            for row in rows
        ]
        return found, all(len(rows) < ROWS_PER_LOOK for (rows,) in answers.values())

    def renew(self, access: ShardClients, held: Sequence[Entry]) -> set[tuple[int, str]]:
        """Tell Redis that these entries are not forgotten; return those that are still this consumer's.

        One that was silent for too long is left to whoever claims it: between the look and the renewal
        nobody else can then have become entitled to what is renewed. What is held of shards that cannot be
        reached is kept: at worst another gets it too.
        """
        keys, member = self._shards.keys, self._member
        reachable = set(access.reachable(keys))
        by_shard = _by_shard(entry for entry in held if entry.shard in reachable)

        def look(pipe: Any, shard: int) -> None:
            key = keys.events(shard)
            for entry in by_shard[shard]:
                pipe.xpending_range(key, member.group, entry.id, entry.id, 1, consumername=member.consumer)

        rows = access.ask(keys, by_shard, look)
        ours = _by_shard(
            entry
            for shard, entries in by_shard.items()
            for entry, row in zip(entries, rows[shard], strict=True)
            if row and row[0]["time_since_delivered"] < self._idle_ms * 0.8
        )

        def renew(pipe: Any, shard: int) -> None:
            ids: list[Any] = [entry.id for entry in ours[shard]]
            pipe.xclaim(keys.events(shard), member.group, member.consumer, 0, ids, justid=True)

        access.ask(keys, ours, renew)
        others = (entry for entry in held if entry.shard not in reachable)
        return {(entry.shard, entry.id) for entry in (*others, *chain.from_iterable(ours.values()))}

    def claim(self, access: ShardClients, waiting: Redelivery) -> Entry | Gap | None:
        """Take an entry over, to deliver it again.

        Returns:
            The entry; a `Gap` if the stream's cap removed it before it was handled; None if somebody else
            has it by now, or if it was given up.
        """
        keys, member = self._shards.keys, self._member
        key = keys.events(waiting.shard)
        if not waiting.min_idle_ms and not self._is_ours(access, waiting):
            return None
        with access.at(key).pipeline(transaction=True) as pipe:
            pipe.xrange(key, waiting.id, waiting.id)
            pipe.xpending_range(key, member.group, waiting.id, waiting.id, 1)
            pipe.xclaim(key, member.group, member.consumer, waiting.min_idle_ms, [waiting.id])
            present, rows, claimed = pipe.execute(raise_on_error=False)
        for answer in (present, rows, claimed):
            if isinstance(answer, RedisError) and not str(answer).startswith("NOGROUP"):
                raise answer
            if isinstance(answer, RedisError):
                return None
        is_taken = not rows or rows[0]["time_since_delivered"] < waiting.min_idle_ms
        if is_taken or (present and not claimed):
            return None
        if not present:
            self._forget(access, waiting)
            return Gap(waiting.shard, waiting.id, "trimmed", dropped=1)
        before = rows[0]
        deliveries = before["times_delivered"]
        if deliveries >= member.max_deliveries:
            self._give_up(
                access, read_entry(waiting.shard, present[0], deliveries), before["consumer"].decode()
            )
            return None
        return read_entry(waiting.shard, present[0], deliveries + 1)

    def _is_ours(self, access: ShardClients, waiting: Redelivery) -> bool:
        key, member = self._shards.keys.events(waiting.shard), self._member
        rows: Any = access.at(key).xpending_range(
            key, member.group, waiting.id, waiting.id, 1, consumername=member.consumer
        )
        return bool(rows)

    def _give_up(self, access: ShardClients, entry: Entry, consumer: str) -> None:
        """Move the entry to the dead letters."""
        keys, group = self._shards.keys, self._member.group
        client = access.at(keys.events(entry.shard))
        noted: Any = client.hget(keys.errors(entry.shard, group), entry.id)
        error = noted.decode("utf-8", "backslashreplace") if noted else _NO_WORD
        letter: dict[Any, Any] = {
            "original_id": entry.id,
            "group": group,
            "consumer": consumer,
            "deliveries": entry.deliveries,
            "error": error,
            **entry.fields,
        }
        with client.pipeline(transaction=True) as pipe:
            pipe.xadd(keys.dead(entry.shard), letter, maxlen=DEAD_LETTERS_MAX, approximate=True)
            pipe.xack(keys.events(entry.shard), group, entry.id)
            pipe.hdel(keys.errors(entry.shard, group), entry.id)
            pipe.execute()
        log.error(
            "gave up event %s of shard %d after %d deliveries: %s",
            entry.id,
            entry.shard,
            entry.deliveries,
            error,
        )

    def _forget(self, access: ShardClients, waiting: Redelivery) -> None:
        keys, group = self._shards.keys, self._member.group
        with access.at(keys.events(waiting.shard)).pipeline(transaction=False) as pipe:
            pipe.xack(keys.events(waiting.shard), group, waiting.id)  # Redis 7 did so when it was claimed
            pipe.hdel(keys.errors(waiting.shard, group), waiting.id)
            pipe.execute()

    @property
    def _idle_ms(self) -> int:
        return max(1, round(self._member.claim_idle_s * 1000))


def _by_shard(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    found: dict[int, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.shard, []).append(entry)
    return found
