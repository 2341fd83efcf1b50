"""The entries that a consumer of a group knows. Each is in one state, and only the methods here move it.

| state | in Redis | moved by | to |
| --- | --- | --- | --- |
| unknown | new | `add` | AHEAD |
| | pending: its own from before, handed back, or of a silent consumer | `found` | LISTED |
| LISTED | the same | `claimed` | AHEAD, or unknown: another consumer has it |
| AHEAD | pending for this consumer, not counted; renewed | `take` | TAKEN |
| | | `keep` | unknown: another consumer has it |
| TAKEN | the same, but perhaps counted | `hand_out` | HANDED_OUT |
| | | `put_back` | AHEAD: it could not be counted |
| | | `skip` | unknown |
| HANDED_OUT | pending for this consumer, counted | `settle` | unknown |
| | | `refuse` | REFUSED |
| | | `found` | OVERDUE: its handler takes long |
| | | `put_back` | AHEAD: it never reached a handler |
| OVERDUE | the same; any consumer may claim it | `claimed` | AHEAD, or HANDED_OUT: another consumer has it |
| | | `settle` | unknown |
| | | `refuse` | REFUSED |
| | | `put_back` | AHEAD |
| REFUSED | as before | `take_back` | LISTED, DELAYED, or unknown: a dead letter, or too many are DELAYED |
| DELAYED | pending for this consumer; renewed | `end_delays` | LISTED |
| | | `keep` | unknown: another consumer has it |

At a stop, `clear` makes all unknown, or all but what is HANDED_OUT. A gap is AHEAD, TAKEN, and then the
program's.

Order: within a shard nothing is taken while an older entry is LISTED or OVERDUE.

`settle` and `refuse` may be called from any thread, the other methods from one at a time.
"""

import math
from collections.abc import Collection, Iterable
from enum import Enum
from threading import RLock
from typing import Final, NamedTuple

from presence.subscriber.events import Entry, Gap, Item, id_order
from presence.subscriber.source import EntryKey

# Entries that wait for their delay: a few MB, and a command each to renew. More come after `claim_idle_s`.
MAX_DELAYED: Final = 10_000


class EntryState(Enum):
    """Where an entry is; see the table above."""

    LISTED = "listed"
    AHEAD = "ahead"
    TAKEN = "taken"
    HANDED_OUT = "handed out"
    OVERDUE = "overdue"
    REFUSED = "refused"
    DELAYED = "delayed"


_TO_BE_CLAIMED: Final = {None, EntryState.LISTED, EntryState.HANDED_OUT, EntryState.OVERDUE}  # None: unknown


class Listed(NamedTuple):
    """A pending entry known by its id; `min_idle_ms`: who may have it: None for this consumer's own."""

    shard: int
    id: str
    min_idle_ms: int | None = None


class RefusedEntry(NamedTuple):
    """An entry that a handler has refused, for this reason, until this monotonic time; None: no delay."""

    entry: Entry
    until: float | None
    error: str | None


class GroupEntries:
    """The entries that one consumer knows.

    Attributes:
        renewed_at: monotonic time after which everything AHEAD or DELAYED was read, claimed or renewed.
    """

    def __init__(self) -> None:
        self.renewed_at = -math.inf
        self._lock = RLock()  # a handler of a signal may settle, too
        self._listed: dict[EntryKey, Listed] = {}  # LISTED; OVERDUE, if it is in `_handed_out`, too
        self._oldest_listed: dict[int, tuple[int, int]] = {}  # its order, by shard
        self._ahead: list[Item] = []  # by id; a gap after the entry with its id
        self._taken: list[Item] = []
        self._perhaps_counted: set[EntryKey] = set()  # AHEAD: put back, when they may have been counted
        self._handed_out: dict[EntryKey, Entry] = {}
        self._refused: dict[EntryKey, RefusedEntry] = {}
        self._delayed: dict[EntryKey, float] = {}  # until when

    def states(self) -> dict[EntryKey, EntryState]:
        """Return the state of each entry that is known."""
        return {
            **dict.fromkeys(self._listed, EntryState.LISTED),
            **dict.fromkeys(_keys(self._ahead), EntryState.AHEAD),
            **dict.fromkeys(_keys(self._taken), EntryState.TAKEN),
            **dict.fromkeys(self._handed_out, EntryState.HANDED_OUT),
            **dict.fromkeys(self._handed_out.keys() & self._listed.keys(), EntryState.OVERDUE),
            **dict.fromkeys(self._refused, EntryState.REFUSED),
            **dict.fromkeys(self._delayed, EntryState.DELAYED),
        }

    # Found and claimed

    def found(self, entries: Collection[Listed]) -> None:
        """Note pending entries that this consumer may claim."""
        if not entries:
            return
        with self._lock:
            states = self.states()
            for each in entries:
                key = each.shard, each.id
                if states.get(key) not in _TO_BE_CLAIMED:
                    continue
                known = self._listed.get(key)
                # What was its own may be another's since, and free.
                if known is None or known.min_idle_ms is None:
                    self._listed[key] = each
            self._note_oldest()

    def oldest_listed(self, shards: Collection[int], most: int) -> list[Listed]:
        """Return the oldest entries of some shards that are LISTED or OVERDUE, to claim them."""
        with self._lock:
            listed = [each for each in self._listed.values() if each.shard in shards]
        return sorted(listed, key=lambda each: (*id_order(each.id), each.shard))[:most]

    def claimed(self, tried: Iterable[Listed], items: Iterable[Item], at: float) -> None:
        """Note the answer to a claim of some entries.

        Args:
            tried: the entries.
            items: those that this consumer has now, and gaps in place of those that were removed.
            at: monotonic time before the call.
        """
        with self._lock:
            # What is no longer listed was settled or refused meanwhile, and stays so.
            ours = [item for item in items if _key(item) in self._listed]
            for each in tried:
                self._listed.pop((each.shard, each.id), None)
            for item in ours:
                self._handed_out.pop(_key(item), None)  # its handler took too long
            self._note_oldest()
        self.add(_with_merged_gaps(ours), at)

    def _note_oldest(self) -> None:
        oldest: dict[int, tuple[int, int]] = {}
        for shard, entry_id in self._listed:
            order = id_order(entry_id)
            oldest[shard] = min(order, oldest.get(shard, order))
        self._oldest_listed = oldest

    # Ahead

    def add(self, items: Iterable[Item], at: float) -> None:
        """Note new entries and gaps that were read; `at`: monotonic time before the call."""
        if not (self._ahead or self._delayed):
            self.renewed_at = at
        self._put_ahead(items)

    def add_gaps(self, gaps: Iterable[Gap]) -> None:
        """Note gaps that were found without reading."""
        self._put_ahead(gaps)

    def _put_ahead(self, items: Iterable[Item]) -> None:
        if new := list(items):
            self._ahead = sorted([*self._ahead, *new], key=_place)

    def has_next(self, shards: Collection[int]) -> bool:
        """Whether an item of some shards can be taken."""
        return self._front(shards) is not None

    def take(self, shards: Collection[int]) -> Item | None:
        """Take the next item of some shards, if there is one."""
        place = self._front(shards)
        if place is None:
            return None
        item = self._ahead.pop(place)
        self._taken.append(item)
        self._perhaps_counted.discard(_key(item))
        return item

    def _front(self, shards: Collection[int]) -> int | None:
        for place, item in enumerate(self._ahead):
            if item.shard in shards:
                oldest = self._oldest_listed.get(item.shard)
                if oldest is None or oldest > id_order(item.id):
                    return place
        return None

    # Taken

    def taken(self) -> list[Entry]:
        """Return the entries that are TAKEN."""
        return [item for item in self._taken if isinstance(item, Entry)]

    def skip(self, item: Item) -> None:
        """Forget an item that is TAKEN: it does not go to the program."""
        self._taken.remove(item)

    def hand_out(self) -> None:
        """Give the program what is TAKEN, and is counted now."""
        for item in self._taken:
            if isinstance(item, Entry):
                self._handed_out[item.shard, item.id] = item
        self._taken = []

    def put_back(self, unseen: Iterable[EntryKey] = ()) -> None:
        """Put back what is TAKEN, and of what is HANDED_OUT the `unseen`, which never reached the program."""
        if back := [*self._taken, *filter(None, map(self.settle, unseen))]:
            self._taken = []
            self._perhaps_counted |= _keys(back)
            self._put_ahead(back)

    def perhaps_counted(self) -> dict[EntryKey, Entry]:
        """Return the entries AHEAD that were perhaps counted, although no handler was called with them."""
        ahead = {_key(item): item for item in self._ahead if isinstance(item, Entry)}
        return {key: ahead[key] for key in ahead.keys() & self._perhaps_counted}

    def uncounted(self) -> None:
        """Note that these are not counted any more."""
        self._perhaps_counted.clear()

    # Handed out

    def handed_out(self) -> dict[EntryKey, Entry]:
        """Return the entries that the program has."""
        return dict(self._handed_out)

    def settle(self, key: EntryKey) -> Entry | None:
        """Forget an entry that the program has settled; return it, or None if the program has none such."""
        with self._lock:
            entry = self._handed_out.pop(key, None)
            if entry is not None and key in self._listed:
                del self._listed[key]
                self._note_oldest()
            return entry

    def refuse(self, key: EntryKey, until: float | None, error: str | None) -> None:
        """Note a refusal, see `RefusedEntry`; do nothing if the program does not have the entry."""
        with self._lock:
            if entry := self.settle(key):
                self._refused[key] = RefusedEntry(entry, until, error)

    # Refused and delayed

    @property
    def has_refused(self) -> bool:
        return bool(self._refused)

    def take_back(self, max_deliveries: int) -> list[RefusedEntry]:
        """Put what is REFUSED where it waits, and return it; what had so many deliveries is forgotten."""
        with self._lock:
            refused, self._refused = [*self._refused.values()], {}
            again = [each for each in refused if each.entry.deliveries < max_deliveries]
            self.found([Listed(each.entry.shard, each.entry.id) for each in again if each.until is None])
            for entry, until, _ in again:
                if until is not None and len(self._delayed) < MAX_DELAYED:
                    self._delayed[_key(entry)] = until
                    self.renewed_at = -math.inf
        return refused

    def end_delays(self, now: float) -> None:
        """List what is DELAYED until now."""
        due = [key for key, until in self._delayed.items() if until <= now]
        for key in due:
            del self._delayed[key]
        self.found([Listed(*key) for key in due])

    def delayed(self) -> dict[EntryKey, float]:
        """Return what is DELAYED, and the monotonic times until when."""
        return dict(self._delayed)

    # Renewed

    def renewable(self) -> list[EntryKey]:
        """Return what is AHEAD or DELAYED."""
        return [*_keys(self._ahead), *self._delayed]

    def keep(self, ours: Collection[EntryKey], at: float) -> None:
        """Keep, of what is AHEAD or DELAYED, what was renewed at this time; another consumer has the rest."""
        self._ahead = [item for item in self._ahead if isinstance(item, Gap) or _key(item) in ours]
        self._delayed = {key: until for key, until in self._delayed.items() if key in ours}
        self._perhaps_counted.intersection_update(ours)
        self.renewed_at = at

    def clear(self, *, keeps_handed_out: bool) -> None:
        """Forget everything, or what the program does not have; call `put_back` first."""
        with self._lock:
            self._listed, self._oldest_listed, self._delayed = {}, {}, {}
            self._ahead = []
            self._perhaps_counted = set()
            if not keeps_handed_out:
                self._handed_out = {}


def _key(item: Item) -> EntryKey:
    return item.shard, item.id


def _keys(items: Iterable[Item]) -> set[EntryKey]:
    return {_key(item) for item in items if isinstance(item, Entry)}


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
