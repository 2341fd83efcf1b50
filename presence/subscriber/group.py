"""Reads all streams as one consumer of a group: at least once, shared with the group's other consumers.

Where an entry is, and what ends it:

| place | in Redis | here | leaves by |
| --- | --- | --- | --- |
| new | after the group's position | | being read |
| listed | pending: its own from before, handed back, or of a silent consumer | `_listed` | being claimed |
| ahead | pending for this consumer, not counted | `_ahead` | being handed out, when it is counted |
| handed out | pending, counted | `_handed_out` | `ack`, `nak`, `give_up`; a stop |
| delayed | pending for this consumer, renewed | `_delayed` | its time |
| settled | pending until the next call | `PendingEntries` | that call |

A stop hands back what is listed as this consumer's, ahead, delayed or handed out. A death leaves it pending:
after `claim_idle_s` without a sign of life any consumer lists it. What is ahead or delayed is renewed
meanwhile; what is handed out is not, so that an entry whose handler never returns goes to another consumer.

Order: within a shard nothing is handed out before an entry that is listed and older. Since entries that were
handed back are listed with each read of new ones, entries come in order across stops of consumers, whatever
their names; across deaths too if the next consumer has the same name, and otherwise after `claim_idle_s`.
Consumers side by side share the entries of a user, and so have no order between them.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from presence.store.error_classes import code_of
from presence.store.keys import Keys
from presence.store.redis_client import RedisError
from presence.store.shard_clients import ShardClients
from presence.subscriber.consumer_names import (
    IDLE_CONSUMER_KEPT_S,
    NAME_CHECK_S,
    NameLock,
    forget_idle,
    new_name,
)
from presence.subscriber.events import Entry, Gap, Item, id_order, read_entry
from presence.subscriber.group_cursor import GroupCursor
from presence.subscriber.pending_entries import HANDED_BACK, Listed, PendingEntries
from presence.subscriber.redis_connections import (
    BLOCK_MS,
    PollInterval,
    RedisConnections,
    Shards,
    unless_missing,
)
from presence.subscriber.source import EntryKey, Source

# Entries that wait for their delay: a few MB, and a command each to renew. More come after `claim_idle_s`.
MAX_DELAYED = 10_000
_NEVER = -math.inf


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Group, consumer, and treatment of unacknowledged events; see `subscribe`.

    `consumer`: None for a name of the library's. No two running consumers may share a name. A consumer that
    keeps its name over a crash continues immediately with its unacknowledged events.
    """

    group: str
    consumer: str | None = None
    max_deliveries: int = 5
    claim_idle_s: float = 60.0
    prefetch: int = 100  # entries read ahead, over all shards

    def __post_init__(self) -> None:
        if not self.group or self.consumer == "":
            raise ValueError("a consumer group needs a name, and so does its consumer, unless it is None")
        if self.consumer == HANDED_BACK:
            raise ValueError(f"the consumer {HANDED_BACK!r} of a group is the library's own")
        for name in ("max_deliveries", "prefetch"):
            if not isinstance(getattr(self, name), int):
                raise TypeError(f"{name} must be a whole number")
        if self.max_deliveries < 1 or self.prefetch < 1 or not 0 < self.claim_idle_s < math.inf:
            raise ValueError("max_deliveries, prefetch and claim_idle must be above zero, and finite")


class GroupConsumer(Source[Item]):
    """A source of items from all streams; each entry is settled by `ack`, `nak` or `give_up`, or comes again.

    Args:
        connections: this consumer's own.
        prefix: of all keys.
        start: where a newly created group begins: after this entry id, ``0`` for all that is kept, None for
            new events only.
        clock: monotonic seconds.
        kind: class of key names, if the streams are not those of events.
        shard: the only one to read; all without it.
        owns_name: says whether this process still has the consumer's name, and what is pending for it. None:
            it is checked in Redis, and another process of the same name is an error.
    """

    is_group = True

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
        owns_name: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(connections)
        self.name = options.consumer or new_name()
        self._options = options
        self._clock = clock
        self._shards = Shards(prefix, kind, shard)
        self._cursor = GroupCursor(self._shards, options.group, start)
        self._pending = PendingEntries(
            self._shards,
            options.group,
            self.name,
            claim_idle_s=options.claim_idle_s,
            max_deliveries=options.max_deliveries,
        )
        is_checked = owns_name is None and options.consumer is not None
        self._name_lock = NameLock(options.group, self.name, clock) if is_checked else None
        self._owns_name = owns_name or (lambda: self._name_lock is None or not self._name_lock.is_refused)
        self._poll_interval = PollInterval()
        # What is known of the shards
        self._known_shards = 0  # number
        self._reachable: set[int] = set()  # shards, at the last call
        self._has_begun = False
        self._is_joined = False  # to the group, since the last stop
        self._known_losses = -1
        self._unchecked: set[int] = set()  # shards whose next read may cross a gap
        self._unanswered: set[int] = set()  # shards of which an answer may be lost
        # Shards where entries were handed back, or may have been while this consumer was waiting for its own.
        # It asks for them when it hands out the first entry, which costs no further round trip.
        self._unlisted: set[int] = set()
        # Where entries are: see the module's text
        self._listed: dict[EntryKey, Listed] = {}
        self._oldest_listed: dict[int, tuple[int, int]] = {}  # its order, by shard
        self._ahead: list[Item] = []  # by id; a gap after the entry with its id
        self._taken: list[Item] = []  # from `_ahead`, to be handed out by `hand_out`
        self._handed_out: dict[EntryKey, Entry] = {}
        self._doubtful: dict[EntryKey, Entry] = {}  # ahead, and perhaps counted: the answer was lost
        self._refused: list[tuple[Entry, float, str | None]] = []  # by `nak`: until when, and why
        self._delayed: dict[EntryKey, float] = {}  # until when
        # Monotonic times of what is done now and then
        self._renewed_at = clock()
        self._next_claim_at = _NEVER
        self._next_name_check_at = _NEVER
        self._next_forget_at = clock() + IDLE_CONSUMER_KEPT_S
        self._next_upkeep_at = _NEVER

    # Taking items

    @property
    def has_work(self) -> bool:
        return bool(
            self._refused
            or self._front() is None
            or self._known_losses != self._connections.losses
            or self._clock() >= self._next_upkeep_at
        )

    def next(self) -> Item | None:
        place = self._front()
        if place is None:
            return None
        item = self._ahead.pop(place)
        self._taken.append(item)
        return item

    def _front(self) -> int | None:
        """Return the place of the next item ahead that may be handed out, or None."""
        for place, item in enumerate(self._ahead):
            if item.shard in self._reachable:
                oldest = self._oldest_listed.get(item.shard)
                if oldest is None or oldest > id_order(item.id):
                    return place
        return None

    def skip(self, item: Item) -> None:
        self._taken.remove(item)
        if isinstance(item, Entry):
            self._pending.ack(item)

    def hand_out(self) -> bool:
        try:
            return self._connections.run_on_reachable(self._hand_out, self._shards)
        finally:
            self._doubtful |= {(i.shard, i.id): i for i in self._taken if isinstance(i, Entry)}
            self._insert(self._taken)
            self._taken = []

    def _hand_out(self, clients: ShardClients) -> bool:
        self._reachable = set(clients.reachable(self._shards.keys))
        entries = [item for item in self._taken if isinstance(item, Entry)]
        if any(entry.shard not in self._reachable for entry in entries):
            return False
        unlisted = self._unlisted & self._reachable
        handed_back = self._pending.flush(clients, entries, unlisted)
        self._list(self._pending.handed_back(clients, handed_back))
        self._unlisted -= unlisted
        if handed_back:
            return False  # it is older
        for entry in entries:
            self._handed_out[entry.shard, entry.id] = entry
            self._doubtful.pop((entry.shard, entry.id), None)
        self._taken = []
        return True

    # Settling: these only queue, from any thread

    def ack(self, key: EntryKey) -> None:
        if entry := self._handed_out.pop(key, None):
            self._pending.ack(entry)

    def ack_all(self, but: Collection[EntryKey]) -> None:
        for key in [*self._handed_out]:
            if key not in but:
                self.ack(key)

    def nak(self, key: EntryKey, delay_s: float, error: str | None) -> None:
        if entry := self._handed_out.pop(key, None):
            self._refused.append((entry, self._clock() + delay_s if delay_s else _NEVER, error))

    def give_up(self, key: EntryKey, error: str) -> None:
        if entry := self._handed_out.pop(key, None):
            self._pending.give_up(entry, error)

    def rewind(self, but: Collection[EntryKey]) -> None:
        for key in [*self._handed_out]:
            if key not in but:
                self.nak(key, 0, None)

    def note_error(self, error: str) -> None:
        for entry in [*self._handed_out.values()]:
            self._pending.note_error(entry, error)

    def flush(self) -> None:
        with self._connections.borrow() as clients:
            clients.readmit(is_early=True)
            self._take_back_refused()
            self._pending.flush(clients)

    # Reading

    def fetch(self) -> None:
        """Fetch; take about `BLOCK_MS` at most."""
        try:
            self._connections.run_on_reachable(self._fetch, self._shards)
        except RedisError as error:
            # Redis was emptied meanwhile: the next fetch, on a new connection, creates the group again.
            if code_of(error) != "NOGROUP" and "no such key" not in str(error):
                raise

    def _fetch(self, clients: ShardClients) -> None:
        self._reachable = set(clients.reachable(self._shards.keys))
        self._prepare(clients)
        self._take_back_refused()
        self._pending.flush(clients)
        if self._clock() >= self._next_upkeep_at:
            self._keep_up(clients)
        self._recover_unanswered(clients)
        self._claim_listed(clients)
        if self._front() is None:
            self._read_new(clients)
            self._claim_listed(clients)

    def _prepare(self, clients: ShardClients) -> None:
        """Join new shards; after a loss of connections, look for gaps and lost answers."""
        new = self._shards.new_shards(self._known_shards, clients, self._connections.losses)
        self._shards.warn_if_missing(self.redis)
        for shard in new:
            if self._shards.selected([shard]):
                self._cursor.join(clients, shard, is_late=self._has_begun)
                self._list(self._pending.own(clients, shard))
                forget_idle(clients, self._shards, self._options.group, [shard])
            self._known_shards = shard + 1
        self._reachable = set(clients.reachable(self._shards.keys))
        if self._known_losses != self._connections.losses:
            joined = self._shards.selected(range(self._known_shards))
            self._unchecked = set(joined)
            self._unanswered = set(joined) if self._has_begun else set()
            self._known_losses = self._connections.losses
        self._has_begun = self._is_joined = True
        if due := self._unchecked & self._reachable:
            # Before anything is read: if this consumer dies before it reports a gap, the gap is found again.
            self._insert(self._cursor.find_gaps(clients, due))
            self._unchecked -= due

    def _recover_unanswered(self, clients: ShardClients) -> None:
        """List entries that were lost with the connection, in an answer to this consumer."""
        for shard in self._unanswered & self._reachable:
            self._list(self._pending.own(clients, shard, self._cursor.highest_read(shard)))
            self._unanswered.discard(shard)

    def _read_new(self, clients: ShardClients) -> None:
        joined = self._shards.selected(range(self._known_shards))
        count = max(1, self._options.prefetch // max(1, len(joined)))
        began_at = self._clock()
        gaps, entries, handed_back = self._cursor.read(clients, self.name, count)
        self._unlisted = handed_back  # also if listing them fails
        if not (gaps or entries or handed_back):
            entries = self._wait(clients, count)
            self._unlisted = {entry.shard for entry in entries}
        if not self._ahead:
            self._renewed_at = began_at
        entries.sort(key=lambda entry: (*id_order(entry.id), entry.shard))
        self._cursor.note_read(entries)
        self._insert([*gaps, *entries])
        self._list(self._pending.handed_back(clients, handed_back))
        self._unlisted = self._unlisted - handed_back

    def _insert(self, items: Iterable[Item]) -> None:
        if new := list(items):
            self._ahead = sorted([*self._ahead, *new], key=_place)

    # Listed entries

    def _list(self, entries: Iterable[Listed]) -> None:
        """List entries, except those that are here."""
        if not (new := {(each.shard, each.id): each for each in entries}):
            return
        here = {
            (each.shard, each.id) for each in self._ahead if isinstance(each, Entry)
        } | self._delayed.keys()
        for key in new.keys() - here:
            known = self._listed.get(key)
            # What was its own may be another's since, and free.
            if known is None or known.min_idle_ms is None:
                self._listed[key] = new[key]
        self._note_oldest()

    def _note_oldest(self) -> None:
        self._oldest_listed = {}
        for shard, entry_id in self._listed:
            order = id_order(entry_id)
            self._oldest_listed[shard] = min(order, self._oldest_listed.get(shard, order))

    def _claim_listed(self, clients: ShardClients) -> None:
        """Claim the oldest listed entries if one of them is next."""
        while self._front() is None:
            due = sorted(
                (each for each in self._listed.values() if each.shard in self._reachable),
                key=lambda each: (*id_order(each.id), each.shard),
            )[: self._options.prefetch]
            if not due:
                return
            claimed_at = self._clock()
            claimed = self._pending.claim(clients, due)
            for each in due:
                del self._listed[each.shard, each.id]
            self._note_oldest()
            for item in claimed:
                self._handed_out.pop((item.shard, item.id), None)  # its handler took too long
            if not self._ahead:
                self._renewed_at = claimed_at
            self._insert(_with_merged_gaps(claimed))

    def _take_back_refused(self) -> None:
        """Put refused entries where they wait, or make them dead letters."""
        while self._refused:
            entry, until, error = self._refused.pop(0)
            if error is not None:
                self._pending.note_error(entry, error)
            key = entry.shard, entry.id
            if entry.deliveries >= self._options.max_deliveries:
                self._pending.give_up(entry, error)
            elif until == _NEVER:
                self._list([Listed(*key)])
            elif len(self._delayed) < MAX_DELAYED:
                self._delayed[key] = until
                if self._listed.pop(key, None):  # as stale, because its handler took long
                    self._note_oldest()
                self._renewed_at = self._next_upkeep_at = _NEVER

    # Upkeep

    def _keep_up(self, clients: ShardClients) -> None:
        """Do what is due now and then, and note when something is due again."""
        self._check_name(clients)
        self._renew(clients)
        now = self._clock()
        due = [key for key, until in self._delayed.items() if until <= now]
        for key in due:
            del self._delayed[key]
        self._list(Listed(*key) for key in due)
        if now >= self._next_claim_at:
            self._list(self._pending.stale(clients))
            self._next_claim_at = now + self._options.claim_idle_s / 4
        if now >= self._next_forget_at:
            which = self._shards.selected(self._reachable)
            forget_idle(clients, self._shards, self._options.group, which)
            self._next_forget_at = now + IDLE_CONSUMER_KEPT_S
        self._next_upkeep_at = min(
            now + self._options.claim_idle_s / 12,  # for the renewal
            self._next_claim_at,
            self._next_name_check_at if self._name_lock else math.inf,
            *self._delayed.values(),
        )

    def _renew(self, clients: ShardClients) -> None:
        now = self._clock()
        kept = [(item.shard, item.id) for item in self._ahead if isinstance(item, Entry)]
        kept += self._delayed
        if not kept:
            self._renewed_at = now
        elif now - self._renewed_at > self._options.claim_idle_s / 3:
            ours = self._pending.renew(clients, kept)
            self._ahead = [i for i in self._ahead if isinstance(i, Gap) or (i.shard, i.id) in ours]
            self._delayed = {key: until for key, until in self._delayed.items() if key in ours}
            self._doubtful = {key: entry for key, entry in self._doubtful.items() if key in ours}
            self._renewed_at = now

    def _check_name(self, clients: ShardClients) -> None:
        if self._name_lock is None or self._clock() < self._next_name_check_at:
            return
        shard = self._first_shard()
        if shard in self._reachable:
            self._name_lock.check(clients, self._shards.keys, shard)
        self._next_name_check_at = self._clock() + NAME_CHECK_S

    def _first_shard(self) -> int:
        return self._shards.selected(range(self._shards.keys.shards))[0]

    # Stopping

    def stop(self, *, keeps_handed_out: bool, unseen: Iterable[EntryKey] = ()) -> None:
        if not self._is_joined:
            return
        self._insert(self._taken)
        self._taken = []
        with self._connections.borrow() as clients:
            clients.readmit(is_early=True)
            self._hand_back(clients, unseen, keeps_handed_out=keeps_handed_out)
        self._ahead, self._listed, self._oldest_listed, self._delayed = [], {}, {}, {}
        if not keeps_handed_out:
            self._handed_out = {}
            self._is_joined = False
            self._known_shards = 0  # to join again with the next read
            self._next_name_check_at = self._next_claim_at = self._next_upkeep_at = _NEVER

    def _hand_back(
        self, clients: ShardClients, unseen: Iterable[EntryKey], *, keeps_handed_out: bool
    ) -> None:
        shards = self._shards.selected(range(self._known_shards))
        if not self._owns_name():
            shards = []  # what is pending is another consumer's
        self._take_back_refused()
        counted = [entry for key in unseen if (entry := self._handed_out.pop(key, None))]
        if counted := [*counted, *self._doubtful.values()]:
            ours = self._pending.renew(clients, [(entry.shard, entry.id) for entry in counted])
            self._pending.uncount(clients, [each for each in counted if (each.shard, each.id) in ours])
            self._doubtful = {}
        if not keeps_handed_out:
            for key, entry in [*self._handed_out.items()]:
                if entry.deliveries >= self._options.max_deliveries:
                    self._pending.give_up(entry, None)
                    del self._handed_out[key]
        self._pending.flush(clients)
        now = self._clock()
        delayed = {key: max(0, round((until - now) * 1000)) for key, until in self._delayed.items()}
        self._pending.hand_back(clients, shards, [*self._handed_out] if keeps_handed_out else [], delayed)
        forget_idle(clients, self._shards, self._options.group, shards, self.name)
        if self._name_lock and shards:
            self._name_lock.release(clients, self._shards.keys, self._first_shard())

    # Waiting

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
            answer: Any = client.xreadgroup(options.group, self.name, streams, count=count, block=BLOCK_MS)
        except RedisError as error:
            if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                raise
            return []  # Redis was emptied; the next fetch detects it
        return [read_entry(names[name], raw) for name, found in answer or () for raw in found]

    def _read_each(self, clients: ShardClients, count: int) -> list[Entry]:
        keys, options = self._shards.keys, self._options

        def fill(pipe: Any, shard: int) -> None:
            pipe.xreadgroup(options.group, self.name, {keys.events(shard): ">"}, count=count)

        shards = self._shards.selected(clients.reachable(keys))
        answers = clients.ask(keys, shards, fill, raise_on_error=False)
        return [
            read_entry(shard, raw)
            for shard, (answer,) in answers.items()
            for _, found in unless_missing(answer) or ()  # a shard was emptied; the next fetch detects it
            for raw in found
        ]


def _place(item: Item) -> tuple[int, int, bool, int]:
    return (*id_order(item.id), isinstance(item, Gap), item.shard)


def _with_merged_gaps(items: Iterable[Item]) -> list[Item]:
    """Merge the gaps of each shard into one."""
    gaps: dict[int, Gap] = {}
    entries: list[Item] = []
    for item in items:
        if isinstance(item, Gap):
            before = gaps.get(item.shard)
            gaps[item.shard] = _merged_gap(before, item) if before else item
        else:
            entries.append(item)
    return [*gaps.values(), *entries]


def _merged_gap(one: Gap, other: Gap) -> Gap:
    return Gap(one.shard, one.id, one.reason, dropped=(one.dropped or 0) + (other.dropped or 0))
