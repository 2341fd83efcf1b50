"""Reads all streams as one consumer of a group: at least once, shared with the group's other consumers.

`group_entries.py` has the entries that this consumer knows, and the table of their states;
`group_membership.py` what is done when it joins and after a lost connection; `group_cursor.py` the group's
position, reads, and gaps; `pending_entries.py` the calls about what is pending in Redis; `dead_letters.py`
what was given up.

A stop hands back every entry that is pending for this consumer. A death leaves them pending: after
`claim_idle_s` without a sign of life any consumer lists them. What is AHEAD or DELAYED is renewed meanwhile;
what is HANDED_OUT is not, so that an entry whose handler never returns goes to another consumer.

Order: within a shard nothing is handed out before an entry that is listed and older. Since entries that were
handed back are listed with each read of new ones, entries come in order across stops of consumers, whatever
their names; across deaths too if the next consumer has the same name, and otherwise after `claim_idle_s`.
Consumers side by side share the entries of a user, and so have no order between them.

Tests: `tests/subscriber/test_group.py`, `tests/subscriber/test_group_model.py`.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from presence.store.error_classes import code_of
from presence.store.keys import Keys
from presence.store.redis_client import RedisError
from presence.store.shard_clients import ShardClients
from presence.subscriber.consumer_names import IDLE_CONSUMER_KEPT_S, NameLock, forget_idle, new_name
from presence.subscriber.events import Entry, Item
from presence.subscriber.group_cursor import GroupCursor
from presence.subscriber.group_entries import GroupEntries
from presence.subscriber.group_membership import GroupMembership
from presence.subscriber.pending_entries import HANDED_BACK, PendingEntries
from presence.subscriber.redis_connections import RedisConnections, Shards
from presence.subscriber.source import EntryKey, Source

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
        self._entries = GroupEntries()
        self._cursor = GroupCursor(self._shards, options.group, start)
        self._pending = PendingEntries(
            self._shards,
            options.group,
            self.name,
            claim_idle_s=options.claim_idle_s,
            max_deliveries=options.max_deliveries,
        )
        self._membership = GroupMembership(self._shards, self._cursor, self._pending, self._entries)
        is_checked = owns_name is None and options.consumer is not None
        self._name_lock = NameLock(self._shards, options.group, self.name, clock) if is_checked else None
        self._owns_name = owns_name or (lambda: self._name_lock is None or not self._name_lock.is_refused)
        self._reachable: set[int] = set()  # shards, at the last call
        # Shards where entries were handed back, or may have been while this consumer was waiting for its own.
        # It asks for them when it hands out the first entry, which costs no further round trip.
        self._unlisted: set[int] = set()
        # Monotonic times of what is done now and then
        self._next_upkeep_at = _NEVER
        self._next_stale_at = _NEVER
        self._next_forget_at = _NEVER

    # Taking items

    @property
    def has_work(self) -> bool:
        return bool(
            self._entries.has_refused
            or not self._entries.has_next(self._reachable)
            or self._membership.losses != self._connections.losses
            or self._clock() >= self._next_upkeep_at
        )

    def next(self) -> Item | None:
        return self._entries.take(self._reachable)

    def skip(self, item: Item) -> None:
        self._entries.skip(item)
        if isinstance(item, Entry):
            self._pending.ack(item)

    def hand_out(self) -> bool:
        try:
            return self._connections.run_on_reachable(self._hand_out, self._shards)
        finally:
            self._entries.put_back()

    def _hand_out(self, clients: ShardClients) -> bool:
        self._reachable = set(clients.reachable(self._shards.keys))
        taken = self._entries.taken()
        if any(entry.shard not in self._reachable for entry in taken):
            return False
        unlisted = self._unlisted & self._reachable
        handed_back = self._pending.flush(clients, taken, unlisted)
        self._entries.found(self._pending.handed_back(clients, handed_back))
        self._unlisted -= unlisted
        if handed_back:
            return False  # it is older
        self._entries.hand_out()
        return True

    # Settling: these only queue, from any thread

    def ack(self, key: EntryKey) -> None:
        if entry := self._entries.settle(key):
            self._pending.ack(entry)

    def ack_all(self, but: Collection[EntryKey]) -> None:
        for key in self._entries.handed_out():
            if key not in but:
                self.ack(key)

    def nak(self, key: EntryKey, delay_s: float, error: str | None) -> None:
        self._entries.refuse(key, self._clock() + delay_s if delay_s else None, error)

    def give_up(self, key: EntryKey, error: str) -> None:
        if entry := self._entries.settle(key):
            self._pending.give_up(entry, error)

    def rewind(self, but: Collection[EntryKey]) -> None:
        for key in self._entries.handed_out():
            if key not in but:
                self.nak(key, 0, None)

    def note_error(self, error: str) -> None:
        for entry in self._entries.handed_out().values():
            self._pending.note_error(entry, error)

    def flush(self) -> None:
        with self._connections.borrow() as clients:
            clients.readmit(is_early=True)
            self._settle(clients)

    def _settle(self, clients: ShardClients) -> None:
        self._take_back_refused()
        self._pending.flush(clients)

    def _take_back_refused(self) -> None:
        for entry, until, error in self._entries.take_back(self._options.max_deliveries):
            if error is not None:
                self._pending.note_error(entry, error)
            if entry.deliveries >= self._options.max_deliveries:
                self._pending.give_up(entry, error)
            elif until is not None:
                self._next_upkeep_at = _NEVER  # to renew it before another consumer may have it

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
        self._membership.update(clients, self._connections.losses)
        self._shards.warn_if_missing(self.redis)
        self._reachable = set(clients.reachable(self._shards.keys))
        self._settle(clients)
        if self._clock() >= self._next_upkeep_at:
            self._keep_up(clients)
        self._claim_listed(clients)
        if not self._entries.has_next(self._reachable):
            self._read_new(clients)
            self._claim_listed(clients)

    def _claim_listed(self, clients: ShardClients) -> None:
        """Claim the oldest listed entries if one of them is next."""
        while not self._entries.has_next(self._reachable):
            oldest = self._entries.oldest_listed(self._reachable, self._options.prefetch)
            if not oldest:
                return
            began_at = self._clock()
            self._entries.claimed(oldest, self._pending.claim(clients, oldest), began_at)

    def _read_new(self, clients: ShardClients) -> None:
        count = max(1, self._options.prefetch // max(1, len(self._membership.joined)))
        began_at = self._clock()
        gaps, entries, handed_back = self._cursor.read(clients, self.name, count)
        self._unlisted = handed_back  # also if listing them fails
        if not (gaps or entries or handed_back):
            entries = self._cursor.wait(clients, self.name, count)
            self._unlisted = {entry.shard for entry in entries}
        self._cursor.note_read(entries)
        self._entries.add([*gaps, *entries], began_at)
        self._entries.found(self._pending.handed_back(clients, handed_back))
        self._unlisted = self._unlisted - handed_back

    # Upkeep

    def _keep_up(self, clients: ShardClients) -> None:
        """Do what is due now and then, and note when something is due again."""
        now, claim_idle_s = self._clock(), self._options.claim_idle_s
        if self._name_lock and now >= self._name_lock.next_check_at:
            self._name_lock.check(clients)
        renewable = self._entries.renewable()
        if renewable and now - self._entries.renewed_at > claim_idle_s / 3:
            self._entries.keep(self._pending.renew(clients, renewable), now)
        self._entries.end_delays(now)
        if now >= self._next_stale_at:
            self._entries.found(self._pending.stale(clients))
            self._next_stale_at = now + claim_idle_s / 4
        if now >= self._next_forget_at:
            forget_idle(clients, self._shards, self._options.group, self._shards.selected(self._reachable))
            self._next_forget_at = now + IDLE_CONSUMER_KEPT_S
        self._next_upkeep_at = min(
            now + claim_idle_s / 12,  # for the renewal
            self._next_stale_at,
            self._name_lock.next_check_at if self._name_lock else math.inf,
            *self._entries.delayed().values(),
        )

    # Stopping

    def stop(self, *, keeps_handed_out: bool, unseen: Iterable[EntryKey] = ()) -> None:
        if not (joined := self._membership.joined):
            return
        self._entries.put_back(unseen)
        with self._connections.borrow() as clients:
            clients.readmit(is_early=True)
            # What is pending under a name that is another process's is that one's.
            self._hand_back(clients, joined if self._owns_name() else [], keeps_handed_out=keeps_handed_out)
        self._entries.clear(keeps_handed_out=keeps_handed_out)
        if not keeps_handed_out:
            self._membership.leave()
            self._next_stale_at = self._next_upkeep_at = _NEVER

    def _hand_back(self, clients: ShardClients, shards: list[int], *, keeps_handed_out: bool) -> None:
        self._take_back_refused()
        if counted := self._entries.perhaps_counted():
            ours = self._pending.renew(clients, counted.keys())
            self._pending.uncount(clients, [entry for key, entry in counted.items() if key in ours])
            self._entries.uncounted()
        if not keeps_handed_out:
            for key, entry in self._entries.handed_out().items():
                if entry.deliveries >= self._options.max_deliveries and self._entries.settle(key):
                    self._pending.give_up(entry, None)
        self._pending.flush(clients)
        now = self._clock()
        delays_ms = {
            key: max(0, round((until - now) * 1000)) for key, until in self._entries.delayed().items()
        }
        kept = self._entries.handed_out() if keeps_handed_out else ()
        self._pending.hand_back(clients, shards, kept, delays_ms)
        forget_idle(clients, self._shards, self._options.group, shards, self.name)
        if self._name_lock and shards:
            self._name_lock.release(clients)
