"""What a key of the fake Redis can hold, and how numbers and ids are written."""

from bisect import bisect_left, insort
from decimal import Decimal
from math import inf, isfinite, nextafter
from typing import Any, Final, Self

MAX_INTEGER: Final = 2**63 - 1
FILLING_ZEROS: Final = 7  # with more of them a number is written with an exponent

Reply = Any  # bytes, int, None, Status or a list of these


class ReplyError(Exception):
    """An error reply; the message begins with its code, as Redis sends it."""


WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"


class StatusReply(bytes):
    """A status reply such as OK, which Lua sees as a table with the field `ok`."""

    __slots__ = ()


class Text(bytes):
    """A string value."""

    __slots__ = ()

    def copy(self) -> Self:
        return self


class Hash(dict[bytes, bytes]):
    """Field to value, in the order in which fields were added."""

    __slots__ = ()

    def copy(self) -> "Hash":
        return Hash(self)


class Members(dict[bytes, None]):
    """A set, in the order in which members were added."""

    __slots__ = ()

    def copy(self) -> "Members":
        return Members(self)


class Sorted:
    """A sorted set: scores by member, and a list in order, of which O(n) moves cost little here."""

    __slots__ = ("order", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self.scores)

    def copy(self) -> "Sorted":
        new = Sorted()
        new.scores, new.order = self.scores.copy(), self.order.copy()
        return new

    def put(self, member: bytes, score: float) -> None:
        old = self.scores.get(member)
        if old is not None:
            if old == score:
                return
            del self.order[bisect_left(self.order, (old, member))]
        self.scores[member] = score
        insort(self.order, (score, member))

    def remove(self, member: bytes) -> bool:
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.order[bisect_left(self.order, (score, member))]
        return True

    def between(self, low: float, high: float) -> list[tuple[float, bytes]]:
        # A score alone sorts before every member that has it.
        first, after = bisect_left(self.order, (low,)), bisect_left(self.order, (nextafter(high, inf),))
        return self.order[first : None if high == inf else after]


EntryId = tuple[int, int]  # ms, number within the ms
NO_ID: Final[EntryId] = (0, 0)


class Stream:
    """Entries in order of their ids; deleted and trimmed ones are gone from both lists."""

    __slots__ = ("entries", "ids", "last")

    def __init__(self) -> None:
        self.ids: list[EntryId] = []
        self.entries: list[tuple[bytes, ...]] = []  # which Python's garbage collector need not walk
        self.last = NO_ID

    def copy(self) -> "Stream":
        new = Stream()
        new.ids, new.entries, new.last = self.ids.copy(), self.entries.copy(), self.last
        return new


Value = Text | Hash | Members | Sorted | Stream


def number_text(number: float) -> bytes:
    """Return a number of Lua, or a score, as Redis writes it."""
    if not isfinite(number):
        return repr(number).encode()  # inf, -inf, nan
    whole = int(number)
    if whole == number and -MAX_INTEGER - 1 <= whole < MAX_INTEGER:
        return b"%d" % whole
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    if isinstance(exponent, int) and 0 <= exponent < FILLING_ZEROS:
        return b"%s%s" % (b"-" * sign, "".join(map(str, digits)).encode() + b"0" * exponent)
    return repr(number).encode()


def entry_id(text: bytes) -> EntryId:
    ms, _, number = text.partition(b"-")
    return int(ms), int(number)


def id_text(entry: EntryId) -> bytes:
    return b"%d-%d" % entry
