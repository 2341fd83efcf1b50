"""What a worker knows of watched users, by slot (`UserTable`), in records of a fixed size. Pure.

An ordinary state is numbers and a few names from short lists: it fits into a record. Of a user with `meta`
the text is kept beside the record. A state is kept whole if it has devices, a reason that is in no list, or
numbers beyond those of a record. Clients can make what is beside the records grow, so its memory is counted.

Any of the times may be missing. A record has the first of `since_ms`, the time in `id` and `last_seen_ms`
that is there, and how far the others are from it, at most 24 days. Pages of records, and tables of a page
each for what is beside them, keep any operation from moving much memory.

Costs: 36 bytes per slot, up to the highest one with a state; each operation O(1), some microseconds.
"""

from struct import Struct
from struct import error as StructError
from sys import getsizeof
from typing import Final, TypeAlias

from presence.protocol import Code
from presence.watching.user_states import (
    AWAY,
    HIDDEN,
    OFFLINE,
    ONLINE,
    UNKNOWN,
    EntryId,
    WatchedState,
    id_of,
    id_text,
)

PAGE_SLOTS: Final = 4_096  # 144 KiB
BESIDE_BYTES: Final = 110  # memory of an entry beside the records: its place in a table, and its number

# The numbers are those of this process, and stored nowhere.
_STATUSES: Final = ("", OFFLINE, ONLINE, AWAY, "busy", "dnd", UNKNOWN, HIDDEN)  # "": nothing is known
_STATUS_NUMBERS: Final = {status: number for number, status in enumerate(_STATUSES) if status}
_REASON_CODES: Final = {"": 0, **{code.reason: int(code) for code in Code}}
_REASONS: Final = {code: reason for reason, code in _REASON_CODES.items()}
# What a record says beside its numbers.
_HAS_SINCE, _HAS_SEEN, _HAS_ID, _HIDES_TIMES, _ASKED_DEVICES, _HAS_META, _IS_WHOLE = (
    1 << bit for bit in range(7)
)

# Status, flags, reason, base, last_seen_ms and the time of `id` after it, the number of `id`, and `as_of`.
_RECORD: Final = Struct("=BBHqiiIqI")

# States without anything else, as of users who were never seen, by status and flags.
_BARE: Final = {
    (number, flags): WatchedState(status, devices=() if flags else None)
    for status, number in _STATUS_NUMBERS.items()
    for flags in (0, _ASKED_DEVICES)
}

_Beside: TypeAlias = str | tuple[WatchedState, EntryId]
"""The `meta` of a packed state, or a whole state with its `as_of`."""


class PackedStates:
    """The newest known states of users, each with the highest entry id that it surely includes.

    Attributes:
        unusual_bytes: approximate memory of what is beside the records.
    """

    def __init__(self) -> None:
        self._pages: list[bytearray] = []
        self._beside: list[dict[int, _Beside]] = []  # by page, then by slot
        self._count = 0
        self.unusual_bytes = 0

    def __len__(self) -> int:
        """Return the number of users whose state is known."""
        return self._count

    def is_known(self, slot: int) -> bool:
        page = slot // PAGE_SLOTS
        return page < len(self._pages) and self._pages[page][slot % PAGE_SLOTS * _RECORD.size] != 0

    def get(self, slot: int) -> tuple[WatchedState, EntryId] | None:
        """Return the state of a user, and the entry id that it includes everything up to; None: not known."""
        page, place = divmod(slot, PAGE_SLOTS)
        if page >= len(self._pages):
            return None
        status, flags, reason, base, seen, time, number, as_of_time, as_of_number = _RECORD.unpack_from(
            self._pages[page], place * _RECORD.size
        )
        if not status:
            return None
        as_of = as_of_time, as_of_number
        if not flags & ~_ASKED_DEVICES and not reason:
            return _BARE[status, flags], as_of
        meta = ""
        if flags & (_HAS_META | _IS_WHOLE):
            beside = self._beside[page][slot]
            if not isinstance(beside, str):
                return beside
            meta = beside
        state = WatchedState(
            _STATUSES[status],
            base if flags & _HAS_SINCE else None,
            base + seen if flags & _HAS_SEEN else None,
            f"{base + time}-{number}" if flags & _HAS_ID else "",
            meta,
            _REASONS[reason],
            () if flags & _ASKED_DEVICES else None,
            bool(flags & _HIDES_TIMES),
        )
        return state, as_of

    def set(self, slot: int, state: WatchedState, as_of: EntryId) -> None:
        number, place = divmod(slot, PAGE_SLOTS)
        place *= _RECORD.size
        while number >= len(self._pages):
            self._pages.append(bytearray(PAGE_SLOTS * _RECORD.size))
            self._beside.append({})
        page = self._pages[number]
        if page[place]:
            self._discard_beside(slot)
        else:
            self._count += 1
        beside: _Beside | None = state.meta or None
        try:
            _RECORD.pack_into(page, place, *_packed(state, as_of), *as_of)
        except (ValueError, StructError):
            _RECORD.pack_into(page, place, _STATUS_NUMBERS[UNKNOWN], _IS_WHOLE, 0, 0, 0, 0, 0, 0, 0)
            beside = state, as_of
        if beside is not None:
            self._beside[number][slot] = beside
            self.unusual_bytes += _bytes_of(beside)

    def forget(self, slot: int) -> None:
        """Forget the state of a user, if it is known."""
        if not self.is_known(slot):
            return
        self._discard_beside(slot)
        self._pages[slot // PAGE_SLOTS][slot % PAGE_SLOTS * _RECORD.size] = 0
        self._count -= 1
        if not self._count:
            self._pages.clear()
            self._beside.clear()

    def _discard_beside(self, slot: int) -> None:
        if (beside := self._beside[slot // PAGE_SLOTS].pop(slot, None)) is not None:
            self.unusual_bytes -= _bytes_of(beside)


def _packed(state: WatchedState, as_of: EntryId) -> tuple[int, ...]:
    """Return a state as numbers of a record, without `as_of` and `meta`.

    The state of an event has the id `as_of`, which needs no reading.

    Raises:
        ValueError: it does not fit; or numbers do not, which `_RECORD` finds.
    """
    status, reason = _STATUS_NUMBERS.get(state.status), _REASON_CODES.get(state.reason)
    if status is None or reason is None or state.devices:
        raise ValueError("an unusual state")
    flags = base = seen = time = number = 0
    if state.since_ms is not None:
        flags, base = _HAS_SINCE, state.since_ms
    if state.id:
        entry = as_of
        if id_text(as_of) != state.id and id_text(entry := id_of(state.id)) != state.id:
            raise ValueError("no entry id as Redis writes it")
        flags |= _HAS_ID
        base = base if flags & _HAS_SINCE else entry[0]
        time, number = entry[0] - base, entry[1]
    if state.last_seen_ms is not None:
        base = base if flags else state.last_seen_ms
        flags, seen = flags | _HAS_SEEN, state.last_seen_ms - base
    flags |= (_HIDES_TIMES if state.hides_times else 0) | (_HAS_META if state.meta else 0)
    flags |= _ASKED_DEVICES if state.devices is not None else 0
    return status, flags, reason, base, seen, time, number


def _bytes_of(beside: _Beside) -> int:
    if isinstance(beside, str):
        return BESIDE_BYTES + getsizeof(beside)
    return BESIDE_BYTES + beside[0].memory_bytes()
