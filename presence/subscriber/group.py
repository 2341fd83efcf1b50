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
from collections.abc import Callable
from typing import Any

from presence.store.access import Access
from presence.store.client import RedisError
from presence.store.failures import code_of
from presence.store.keys import Keys
from presence.subscriber.events import Entry, Gap, Item, id_order, read_entry
from presence.subscriber.link import BLOCK_MS, Link, Looks, Shards
from presence.subscriber.pending import Pending, Waiting
from presence.subscriber.place import GroupPlace, unless_missing
from presence.subscriber.source import Membership, Source


class GroupConsumer(Source[Item]):
    """A source of items from all streams, each of which is settled before the next is taken.

    Args:
        link: its connection, which nobody else uses.
        prefix: what the keys begin with.
        member: which consumer it is.
        start: where a group begins that is created now: after this entry id, ``0`` for all that is kept,
            None for new events only.
        clock: monotonic seconds.
        kind: names of the streams, if they are not those of events.
    """

    def __init__(
        self,
        link: Link,
        prefix: str,
        member: Membership,
        start: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        kind: type[Keys] = Keys,
    ) -> None:
        self._link = link
        self._member = member
        self._clock = clock
        self._shards = Shards(prefix, kind)
        self._place = GroupPlace(self._shards, member.group, start)
        self._pending = Pending(self._shards, member)
        self._looks = Looks()
        self._taken_up = 0  # shards
        self._has_begun = False
        self._known_losses = -1
        self._unchecked: set[int] = set()  # shards whose next read might cross a gap
        self._unheard: set[int] = set()  # shards of which an answer may have been lost
        self._next_claims = clock() + member.claim_idle_s / 4
        self._renewed = clock()
        self._buffer: deque[Item] = deque()
        self._again: deque[Waiting] = deque()  # to be delivered anew, claimed when they are
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
            self._again.appendleft(Waiting(self._current.shard, self._current.id))
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

    def _fetch(self, access: Access) -> None:
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

    def close(self) -> None:
        """See `Source`; what was read ahead stays pending."""
        self._link.close()

    def _prepare(self, access: Access) -> None:
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

    def _take_up_unheard(self, access: Access) -> None:
        """Deliver again what Redis gave to this consumer in an answer that was lost with its connection."""
        known = {(waiting.shard, waiting.id) for waiting in self._again}
        for shard in self._unheard.intersection(access.reachable(self._shards.keys)):
            unheard = self._pending.own(access, shard, self._place.seen(shard))
            self._again.extend(each for each in unheard if (shard, each.id) not in known)
            self._unheard.discard(shard)

    def _next_again(self, access: Access) -> Waiting | None:
        reachable = set(access.reachable(self._shards.keys))
        return next((waiting for waiting in self._again if waiting.shard in reachable), None)

    def _renew(self, access: Access) -> None:
        now = self._clock()
        held = [item for item in self._buffer if isinstance(item, Entry)]
        if not held:
            self._renewed = now
        elif now - self._renewed > self._member.claim_idle_s / 3:
            ours = self._pending.renew(access, held)
            self._buffer = deque(i for i in self._buffer if isinstance(i, Gap) or (i.shard, i.id) in ours)
            self._renewed = now

    def _look_for_the_dead(self, access: Access) -> None:
        known = {(waiting.shard, waiting.id) for waiting in self._again}
        stale, is_all = self._pending.stale(access)
        self._again.extend(waiting for waiting in stale if (waiting.shard, waiting.id) not in known)
        self._next_claims = self._clock() + (self._member.claim_idle_s / 4 if is_all else 0.0)

    def _has_redelivery(self) -> bool:
        return any(isinstance(item, Entry) and item.deliveries > 1 for item in self._buffer)

    def _redeliver(self, access: Access) -> None:
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

    def _read_new(self, access: Access) -> None:
        count = max(1, self._member.prefetch // self._shards.keys.shards)
        gaps, entries = self._place.read(access, self._member.consumer, count)
        if not (gaps or entries):
            entries = self._wait(access, count)
        entries.sort(key=lambda entry: (*id_order(entry.id), entry.shard))
        self._place.saw(entries)
        self._buffer.extend([*gaps, *entries])
        self._renewed = self._clock()

    def _wait(self, access: Access, count: int) -> list[Entry]:
        """Wait for new entries, for about `BLOCK_MS`; return those that came."""
        if not access.is_cluster:
            return self._read_blocking(access, count)
        for _ in self._looks.until(BLOCK_MS / 1000, access):
            if entries := self._read_each(access, count):
                self._looks.came()
                return entries
        return []

    def _read_blocking(self, access: Access, count: int) -> list[Entry]:
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

    def _read_each(self, access: Access, count: int) -> list[Entry]:
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
