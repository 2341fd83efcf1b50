"""What a key of the fake Redis can hold, and how numbers and ids are read and written."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from decimal import Decimal
from math import inf, isfinite, isnan, nextafter
from typing import Any, Final, NamedTuple, Self

MAX_INTEGER: Final = 2**63 - 1
FILLING_ZEROS: Final = 7  # with more of them a number is written with an exponent

Reply = Any  # bytes, int, None, Status or a list of these


Command = tuple[Callable[..., Reply], int, float]  # what performs it, least and most arguments


class ReplyError(Exception):
    """An error reply; the message begins with its code, as Redis sends it."""


WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
NOT_AN_INTEGER: Final = "ERR value is not an integer or out of range"
SYNTAX: Final = "ERR syntax error"


class Status(bytes):
    """A status reply such as OK, which Lua sees as a table with the field `ok`."""

    __slots__ = ()


OK: Final = Status(b"OK")


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

    def between(self, low: "Bound", high: "Bound") -> list[tuple[float, bytes]]:
        """Return what lies between two scores, in order."""
        return self.order[self._place(low.score, low.exclusive) : self._place(high.score, not high.exclusive)]

    def _place(self, score: float, after: bool) -> int:
        """Return where the members with a score begin, or end."""
        if after and score == inf:
            return len(self.order)
        # A score alone sorts before every member that has it.
        return bisect_left(self.order, (nextafter(score, inf) if after else score,))


class Bound(NamedTuple):
    """An end of a range of scores."""

    score: float
    exclusive: bool


EntryId = tuple[int, int]  # ms, number within the ms
NO_ID: Final[EntryId] = (0, 0)
MAX_ID: Final[EntryId] = (2**64 - 1, 2**64 - 1)


class Stream:
    """Entries in order of their ids; what was deleted or trimmed is gone from both lists."""

    __slots__ = ("added", "entries", "ids", "last", "max_deleted")

    def __init__(self) -> None:
        self.ids: list[EntryId] = []
        self.entries: list[tuple[bytes, ...]] = []  # which Python's garbage collector need not walk
        self.last = NO_ID
        self.max_deleted = NO_ID
        self.added = 0

    def copy(self) -> "Stream":
        new = Stream()
        new.ids, new.entries = self.ids.copy(), self.entries.copy()
        new.last, new.max_deleted, new.added = self.last, self.max_deleted, self.added
        return new

    def slice(self, first: EntryId, last: EntryId) -> range:
        """Return the places of the entries from one id to another, both included."""
        return range(bisect_left(self.ids, first), bisect_right(self.ids, last))


Value = Text | Hash | Members | Sorted | Stream
TYPE_NAMES: Final[dict[type, Status]] = {
    Text: Status(b"string"),
    Hash: Status(b"hash"),
    Members: Status(b"set"),
    Sorted: Status(b"zset"),
    Stream: Status(b"stream"),
}


def integer(text: bytes) -> int:
    """Return a whole number as Redis reads it: digits, no blanks, no plus, no zero before them."""
    try:
        number = int(text)
    except ValueError:
        raise ReplyError(NOT_AN_INTEGER) from None
    if b"%d" % number != text or not -MAX_INTEGER - 1 <= number <= MAX_INTEGER:
        raise ReplyError(NOT_AN_INTEGER)
    return number


def real(text: bytes, error: str = "ERR value is not a valid float") -> float:
    """Return a score."""
    if text.isdigit():
        return float(int(text))
    try:
        number = float(text)
    except ValueError:
        raise ReplyError(error) from None
    if isnan(number) or text != text.strip() or b"_" in text:
        raise ReplyError(error)
    return number


def bound(text: bytes) -> Bound:
    """Return one end of a range of scores."""
    exclusive = text[:1] == b"("
    return Bound(real(text[1:] if exclusive else text, "ERR min or max is not a float"), exclusive)


def number_text(number: float) -> bytes:
    """Return a number of Lua, or a score, as Redis writes it: digits, or as short as can be."""
    if not isfinite(number):
        return repr(number).encode()  # inf, -inf, nan
    whole = int(number)
    if whole == number and -MAX_INTEGER - 1 <= whole < MAX_INTEGER:
        return b"%d" % whole
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    if isinstance(exponent, int) and 0 <= exponent < FILLING_ZEROS:
        return b"%s%s" % (b"-" * sign, "".join(map(str, digits)).encode() + b"0" * exponent)
    return repr(number).encode()


def entry_id(text: bytes, default_number: int) -> EntryId:
    """Return an entry id; `default_number` stands for a number that is left out."""
    ms, dash, number = text.partition(b"-")
    if not ms.isdigit() or (dash and not number.isdigit()):
        raise ReplyError("ERR Invalid stream ID specified as stream command argument")
    return int(ms), int(number) if dash else default_number


def id_text(entry: EntryId) -> bytes:
    """Return an entry id as Redis writes it."""
    return b"%d-%d" % entry
