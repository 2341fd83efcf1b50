"""Reads all streams as one consumer of a group: at least once, shared with the group's other consumers.

Redis keeps a delivered entry as *pending* for its consumer until it is acknowledged. A pending entry ends in
one of three ways:

- its consumer acknowledges it;
- its consumer dies or abandons it: after `claim_idle_s` without a sign of life any consumer claims it.
  Entries in the memory of a live consumer are renewed meanwhile, so they are not claimed;
- it was delivered `max_deliveries` times and is still pending: it becomes a dead letter, in one transaction.

Redis counts deliveries. New entries are read ahead, which counts as a delivery before a handler has seen
them. So *redeliveries* are claimed one by one, each at the moment it is handed out. Otherwise each crash of a
consumer on a bad event would also count against the events read with it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from presence.common.redaction import redact_text
from presence.common.text import printable
from presence.store.client import RedisError
from presence.store.error_classes import code_of
from presence.store.keys import Keys
from presence.store.shard_clients import ShardClients
from presence.subscriber.connection import BLOCK_MS, PollInterval, RedisConnections, Shards, Source, log
from presence.subscriber.cursor import GroupCursor, unless_missing
from presence.subscriber.events import Entry, Gap, Item, id_order, read_entry

MAX_PENDING_ROWS_PER_CALL = 100  # of each shard
MAX_DEAD_LETTERS = 100_000  # of each shard, roughly: some 40 MB
MAX_ERROR_CHARS = 500
_NO_ERROR_REPORTED = "its consumer died, or left the loop without a word"


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Group, consumer, and treatment of unacknowledged events; see `subscribe`.

    No two running consumers may share a name. A consumer that keeps its name over a restart continues
    immediately with its unacknowledged events.
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
    """A pending entry to be delivered again; `min_idle_ms` is 0 for this consumer's own."""

    shard: int
    id: str
    min_idle_ms: int = 0


class GroupConsumer(Source[Item]):
    """A source of items from all streams; each is acknowledged, failed or abandoned before the next.

    Args:
        start: where a newly created group begins: after this entry id, ``0`` for all that is kept, None for
            new events only.
        kind: class of key names, if the streams are not those of events.
        shard: the only one to read; all without it.
    """

    def __init__(
        self,
        connections: RedisConnections,
        prefix: str,
        options: ConsumerOptions,
        start: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        kind: type[Keys] = Keys,
        shard: int | None = None,
    ) -> None:
        super().__init__(connections)
        self._options = options
        self._clock = clock
        self._shards = Shards(prefix, kind, shard)
        self._cursor = GroupCursor(self._shards, options.group, start)
        self._pending = PendingEntries(self._shards, options)
        self._poll_interval = PollInterval()
        self._known_shards = 0  # number
        self._has_begun = False
        self._known_losses = -1
        self._unchecked: set[int] = set()  # shards whose next read may cross a gap
        self._unanswered: set[int] = set()  # shards of which an answer may be lost
        self._next_claim_at = clock() + options.claim_idle_s / 4
        self._renewed_at = clock()
        self._buffer: deque[Item] = deque()
        self._redeliveries: deque[Redelivery] = deque()  # each is claimed when it is delivered
        self._current: list[Entry] = []

    def next(self) -> Item | None:
        """See `Source`."""
        item = self._buffer.popleft() if self._buffer else None
        if isinstance(item, Entry):
            self._current.append(item)
        return item

    def ack(self, item: Item | None = None) -> None:
        """See `Source`."""
        for entry in [each for each in self._current if item is None or each is item]:
            self._pending.ack(entry)
            self._current.remove(entry)

    def rewind(self) -> None:
        """See `Source`."""
        self._redeliveries.extendleft(Redelivery(each.shard, each.id) for each in reversed(self._current))
        self._current.clear()

    def fail(self, error: str) -> None:
        """See `Source`."""
        for entry in self._current:
            self._pending.note_error(entry, error)
        self._current.clear()

    def abandon(self, error: str) -> None:
        """See `Source`."""
        for entry in self._current:
            self._pending.note_error(entry, error)
        self.rewind()

    def give_up(self, item: Item, error: str) -> None:
        """See `Source`."""
        if isinstance(item, Entry):
            with self._connections.borrow() as clients:
                self._pending.move_to_dead_letters(clients, item, self._options.consumer, error)
            self._current.remove(item)

    def fetch(self) -> None:
        """See `Source`; it takes about `BLOCK_MS` at most."""
        try:
            self._connections.run_on_reachable(self._fetch, self._shards)
        except RedisError as error:
            # Redis was emptied meanwhile: the next fetch, on a new connection, creates the group again.
            if code_of(error) != "NOGROUP" and "no such key" not in str(error):
                raise

    def _fetch(self, clients: ShardClients) -> None:
        self._prepare(clients)
        self._pending.flush(clients)
        self._renew(clients)
        redelivery = self._next_redelivery(clients)
        if redelivery and not redelivery.min_idle_ms and not self._has_redelivery():
            self._redeliver(clients)  # older than the entries read ahead
        if not self._buffer:
            self._recover_unanswered(clients)
        if not self._buffer and self._clock() >= self._next_claim_at:
            self._find_stale(clients)
        if not self._buffer and self._redeliveries:
            self._redeliver(clients)
        if not self._buffer:
            self._read_new(clients)

    def flush(self) -> None:
        """See `Source`."""
        with self._connections.borrow() as clients:
            clients.readmit(is_early=True)
            self._pending.flush(clients)

    def _prepare(self, clients: ShardClients) -> None:
        new = self._shards.new_shards(self._known_shards, clients, self._connections.losses)
        self._shards.warn_if_missing(self.redis)
        for shard in new:
            if self._shards.selected([shard]):
                self._cursor.join(clients, shard, is_late=self._has_begun)
                self._redeliveries.extend(self._pending.own_entries(clients, shard))
            self._known_shards = shard + 1
        reachable = set(clients.reachable(self._shards.keys))
        if self._known_losses != self._connections.losses:
            joined = self._shards.selected(range(self._known_shards))
            self._unchecked = set(joined)
            self._unanswered = set(joined) if self._has_begun else set()
            self._known_losses = self._connections.losses
        self._has_begun = True
        if due := self._unchecked & reachable:
            # Before anything is read: if this consumer dies before it reports a gap, the gap is found again.
            self._buffer.extendleft(self._cursor.find_gaps(clients, due))
            self._unchecked -= due

    def _recover_unanswered(self, clients: ShardClients) -> None:
        """Redeliver entries that were lost with the connection, in an answer to this consumer."""
        known = {(redelivery.shard, redelivery.id) for redelivery in self._redeliveries}
        for shard in self._unanswered.intersection(clients.reachable(self._shards.keys)):
            unanswered = self._pending.own_entries(clients, shard, self._cursor.highest_read(shard))
            self._redeliveries.extend(each for each in unanswered if (shard, each.id) not in known)
            self._unanswered.discard(shard)

    def _next_redelivery(self, clients: ShardClients) -> Redelivery | None:
        reachable = set(clients.reachable(self._shards.keys))
        return next((redelivery for redelivery in self._redeliveries if redelivery.shard in reachable), None)

    def _renew(self, clients: ShardClients) -> None:
        now = self._clock()
        read_ahead = [item for item in self._buffer if isinstance(item, Entry)]
        if not read_ahead:
            self._renewed_at = now
        elif now - self._renewed_at > self._options.claim_idle_s / 3:
            ours = self._pending.renew(clients, read_ahead)
            self._buffer = deque(i for i in self._buffer if isinstance(i, Gap) or (i.shard, i.id) in ours)
            self._renewed_at = now

    def _find_stale(self, clients: ShardClients) -> None:
        known = {(redelivery.shard, redelivery.id) for redelivery in self._redeliveries}
        stale, is_all = self._pending.stale_entries(clients)
        self._redeliveries.extend(
            redelivery for redelivery in stale if (redelivery.shard, redelivery.id) not in known
        )
        self._next_claim_at = self._clock() + (self._options.claim_idle_s / 4 if is_all else 0.0)

    def _has_redelivery(self) -> bool:
        return any(isinstance(item, Entry) and item.deliveries > 1 for item in self._buffer)

    def _redeliver(self, clients: ShardClients) -> None:
        """Claim the next redelivery; report one gap per shard for trimmed ones."""
        missing: dict[int, Gap] = {}
        found = None
        try:
            while found is None and (redelivery := self._next_redelivery(clients)):
                claimed = self._pending.claim(clients, redelivery)
                self._redeliveries.remove(redelivery)
                if isinstance(claimed, Gap):
                    before = missing.get(claimed.shard)
                    missing[claimed.shard] = _merged_gap(before, claimed) if before else claimed
                else:
                    found = claimed
        finally:
            if found is not None:
                self._buffer.appendleft(found)
            self._buffer.extendleft(missing.values())

    def _read_new(self, clients: ShardClients) -> None:
        joined = self._shards.selected(range(self._known_shards))
        count = max(1, self._options.prefetch // max(1, len(joined)))
        gaps, entries = self._cursor.read(clients, self._options.consumer, count)
        if not (gaps or entries):
            entries = self._wait(clients, count)
        entries.sort(key=lambda entry: (*id_order(entry.id), entry.shard))
        self._cursor.note_read(entries)
        self._buffer.extend([*gaps, *entries])
        self._renewed_at = self._clock()

    def _wait(self, clients: ShardClients, count: int) -> list[Entry]:
        """Wait for new entries, for about `BLOCK_MS`; return those that came."""
        if not clients.is_cluster:
            return self._read_blocking(clients, count)
        return self._poll_interval.wait(BLOCK_MS / 1000, clients, lambda: self._read_each(clients, count))

    def _read_blocking(self, clients: ShardClients, count: int) -> list[Entry]:
        keys, options = self._shards.keys, self._options
        joined = self._shards.selected(range(keys.shards))
        names = {keys.events(shard).encode(): shard for shard in joined}
        streams: dict[Any, Any] = dict.fromkeys(names, ">")
        client = clients.at(keys.events(joined[0]))
        try:
            answer: Any = client.xreadgroup(
                options.group, options.consumer, streams, count=count, block=BLOCK_MS
            )
        except RedisError as error:
            if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                raise
            return []  # Redis was emptied; the next fetch detects it
        return [read_entry(names[name], raw) for name, found in answer or () for raw in found]

    def _read_each(self, clients: ShardClients, count: int) -> list[Entry]:
        keys, options = self._shards.keys, self._options

        def fill(pipe: Any, shard: int) -> None:
            pipe.xreadgroup(options.group, options.consumer, {keys.events(shard): ">"}, count=count)

        shards = self._shards.selected(clients.reachable(keys))
        answers = clients.ask(keys, shards, fill, raise_on_error=False)
        return [
            read_entry(shard, raw)
            for shard, (answer,) in answers.items()
            for _, found in unless_missing(answer) or ()  # a shard was emptied; the next fetch detects it
            for raw in found
        ]


def _merged_gap(one: Gap, other: Gap) -> Gap:
    return Gap(one.shard, one.id, one.reason, dropped=(one.dropped or 0) + (other.dropped or 0))


# Pending entries


class PendingEntries:
    """The pending entries of one group, seen from one consumer. All calls raise `RedisError`."""

    def __init__(self, shards: Shards, options: ConsumerOptions) -> None:
        self._shards = shards
        self._options = options
        self._handled: list[Entry] = []
        self._errors: dict[tuple[int, str], str] = {}

    def ack(self, entry: Entry) -> None:
        """Acknowledge the entry with the next `flush`."""
        self._handled.append(entry)

    def note_error(self, entry: Entry, error: str) -> None:
        """Store the error of an entry with the next `flush`, for a dead letter."""
        self._errors[entry.shard, entry.id] = redact_text(error)[:MAX_ERROR_CHARS]

    def flush(self, clients: ShardClients) -> None:
        """Send acknowledgements and errors. If it fails, call it again: nothing is lost or done twice."""
        if not (self._handled or self._errors):
            return
        keys, group = self._shards.keys, self._options.group
        acknowledged, noted = _by_shard(self._handled), self._errors
        due = {*acknowledged, *(shard for shard, _ in noted)}.intersection(clients.reachable(keys))

        def fill(pipe: Any, shard: int) -> None:
            for entry in acknowledged.get(shard, ()):
                pipe.xack(keys.events(shard), group, entry.id)
                if entry.deliveries > 1:
                    pipe.hdel(keys.errors(shard, group), entry.id)
            for (of, entry_id), error in noted.items():
                if of == shard:
                    pipe.hset(keys.errors(shard, group), entry_id, error)

        clients.ask(keys, due, fill)
        self._handled = [entry for entry in self._handled if entry.shard not in due]
        self._errors = {name: error for name, error in noted.items() if name[0] not in due}

    def own_entries(self, clients: ShardClients, shard: int, after: str | None = None) -> list[Redelivery]:
        """Return this consumer's unacknowledged entries after an id, oldest first."""
        key = self._shards.keys.events(shard)
        client = clients.at(key)
        found: list[Redelivery] = []
        begin = f"({after}" if after else "-"
        while True:
            rows: Any = client.xpending_range(
                key,
                self._options.group,
                begin,
                "+",
                MAX_PENDING_ROWS_PER_CALL,
                consumername=self._options.consumer,
            )
            found += [Redelivery(shard, row["message_id"].decode()) for row in rows]
            if len(rows) < MAX_PENDING_ROWS_PER_CALL:
                return found
            begin = f"({found[-1].id}"

    def stale_entries(self, clients: ShardClients) -> tuple[list[Redelivery], bool]:
        """Return entries with a silent consumer, oldest first in each shard, and whether these are all."""
        keys, idle_ms = self._shards.keys, self._idle_ms

        def fill(pipe: Any, shard: int) -> None:
            key = keys.events(shard)
            pipe.xpending_range(key, self._options.group, "-", "+", MAX_PENDING_ROWS_PER_CALL, idle=idle_ms)

        answers = clients.ask(keys, self._shards.selected(clients.reachable(keys)), fill)
        found = [
            Redelivery(shard, row["message_id"].decode(), idle_ms)
            for shard, (rows,) in answers.items()
            for row in rows
        ]
        return found, all(len(rows) < MAX_PENDING_ROWS_PER_CALL for (rows,) in answers.values())

    def renew(self, clients: ShardClients, read_ahead: Sequence[Entry]) -> set[tuple[int, str]]:
        """Reset the idle time of these entries; return those that are still this consumer's.

        An entry that was idle for nearly `claim_idle_s` is left to others: so no other consumer can become
        entitled to a renewed one between check and renewal. Entries of unreachable shards are kept: at worst
        another consumer gets them, too.
        """
        keys, options = self._shards.keys, self._options
        reachable = set(clients.reachable(keys))
        by_shard = _by_shard(entry for entry in read_ahead if entry.shard in reachable)

        def query(pipe: Any, shard: int) -> None:
            key = keys.events(shard)
            for entry in by_shard[shard]:
                pipe.xpending_range(key, options.group, entry.id, entry.id, 1, consumername=options.consumer)

        rows = clients.ask(keys, by_shard, query)
        ours = _by_shard(
            entry
            for shard, entries in by_shard.items()
            for entry, row in zip(entries, rows[shard], strict=True)
            if row and row[0]["time_since_delivered"] < self._idle_ms * 0.8
        )

        def renew(pipe: Any, shard: int) -> None:
            ids: list[Any] = [entry.id for entry in ours[shard]]
            pipe.xclaim(keys.events(shard), options.group, options.consumer, 0, ids, justid=True)

        clients.ask(keys, ours, renew)
        others = (entry for entry in read_ahead if entry.shard not in reachable)
        return {(entry.shard, entry.id) for entry in (*others, *chain.from_iterable(ours.values()))}

    def claim(self, clients: ShardClients, redelivery: Redelivery) -> Entry | Gap | None:
        """Take an entry over, to deliver it again.

        Returns:
            The entry; a `Gap` if the stream's cap removed it before it was handled; None if another consumer
            has it by now, or if it became a dead letter.
        """
        keys, options = self._shards.keys, self._options
        key = keys.events(redelivery.shard)
        if not redelivery.min_idle_ms and not self._is_ours(clients, redelivery):
            return None
        with clients.at(key).pipeline(transaction=True) as pipe:
            pipe.xrange(key, redelivery.id, redelivery.id)
            pipe.xpending_range(key, options.group, redelivery.id, redelivery.id, 1)
            pipe.xclaim(key, options.group, options.consumer, redelivery.min_idle_ms, [redelivery.id])
            present, rows, claimed = pipe.execute(raise_on_error=False)
        for answer in (present, rows, claimed):
            if isinstance(answer, RedisError) and not str(answer).startswith("NOGROUP"):
                raise answer
            if isinstance(answer, RedisError):
                return None
        is_taken = not rows or rows[0]["time_since_delivered"] < redelivery.min_idle_ms
        if is_taken or (present and not claimed):
            return None
        if not present:
            self._remove_trimmed(clients, redelivery)
            return Gap(redelivery.shard, redelivery.id, "trimmed", dropped=1)
        before = rows[0]
        deliveries = before["times_delivered"]
        if deliveries >= options.max_deliveries:
            noted: Any = clients.at(key).hget(keys.errors(redelivery.shard, options.group), redelivery.id)
            error = noted.decode("utf-8", "backslashreplace") if noted else _NO_ERROR_REPORTED
            entry = read_entry(redelivery.shard, present[0], deliveries)
            self.move_to_dead_letters(clients, entry, before["consumer"].decode(), error)
            return None
        return read_entry(redelivery.shard, present[0], deliveries + 1)

    def _is_ours(self, clients: ShardClients, redelivery: Redelivery) -> bool:
        key, options = self._shards.keys.events(redelivery.shard), self._options
        rows: Any = clients.at(key).xpending_range(
            key, options.group, redelivery.id, redelivery.id, 1, consumername=options.consumer
        )
        return bool(rows)

    def move_to_dead_letters(self, clients: ShardClients, entry: Entry, consumer: str, error: str) -> None:
        """Move an entry that this consumer had to the dead letters."""
        keys, group = self._shards.keys, self._options.group
        client = clients.at(keys.events(entry.shard))
        error = redact_text(error)[:MAX_ERROR_CHARS]
        dead_letter: dict[Any, Any] = {
            "original_id": entry.id,
            "group": group,
            "consumer": consumer,
            "deliveries": entry.deliveries,
            "error": error,
            **entry.fields,
        }
        with client.pipeline(transaction=True) as pipe:
            pipe.xadd(keys.dead(entry.shard), dead_letter, maxlen=MAX_DEAD_LETTERS, approximate=True)
            pipe.xack(keys.events(entry.shard), group, entry.id)
            pipe.hdel(keys.errors(entry.shard, group), entry.id)
            pipe.execute()
        # A follow-up has an id of its own, with its rule and its user.
        own_id = entry.fields.get("id")
        log.error(
            "gave up %s of shard %d after %d deliveries: %s",
            f"follow-up {printable(own_id)}" if own_id else f"event {entry.id}",
            entry.shard,
            entry.deliveries,
            error,
        )

    def _remove_trimmed(self, clients: ShardClients, redelivery: Redelivery) -> None:
        keys, group = self._shards.keys, self._options.group
        with clients.at(keys.events(redelivery.shard)).pipeline(transaction=False) as pipe:
            # Redis 7 did so when it was claimed.
            pipe.xack(keys.events(redelivery.shard), group, redelivery.id)
            pipe.hdel(keys.errors(redelivery.shard, group), redelivery.id)
            pipe.execute()

    @property
    def _idle_ms(self) -> int:
        return max(1, round(self._options.claim_idle_s * 1000))


def _by_shard(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    found: dict[int, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.shard, []).append(entry)
    return found
