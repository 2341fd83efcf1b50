"""Rooms of a session: what its client asks for and may watch, within what its token says.

A session is in the rooms of its claim `in` as long as its token says so, and in others as its client likes.
Everywhere but here and in the codec the rooms are one text: the names in the order of their bytes with a
space between two, which no name holds; "" is none. So equal sets of rooms are equal texts.

Costs: O(`ROOMS_MAX`), and for each name that a client asks for one look into the claim.

Tests: `tests/core/test_rooms.py`, `tests/core/test_engine_model.py`.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from presence.core.authenticator import Refusal, RoomClaim
from presence.protocol import ROOMS_MAX, Code

RoomMode: TypeAlias = str
"""The setting `rooms`. ``off``: there are no rooms; ``claimed``: clients may be in those only that their
tokens name; ``open``: in any."""

_NOT_ALLOWED: Final = Refusal(Code.NOT_ALLOWED, "this room may not be joined")
_TOO_MANY: Final = Refusal(Code.TOO_LARGE, f"a session may be in {ROOMS_MAX} rooms")


class RoomChange(NamedTuple):
    """What an update asks for: `rooms`, or those from before if that is None, less `leave`, and `join`."""

    rooms: tuple[str, ...] | None = None
    join: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()


def rooms_at_login(asked: Iterable[str], claim: RoomClaim, mode: RoomMode) -> str:
    """Return the rooms of a new session; what its client may not join, or has no room, is left out."""
    return _with_claimed(asked, claim, mode)


def rooms_after(rooms: str, change: RoomChange, claim: RoomClaim, mode: RoomMode) -> str | Refusal:
    """Return the rooms of a session after an update, or why it is refused."""
    claimed = {*claim.inside.split()}
    if not all(_may_join(name, claim, mode) for name in {*(change.rooms or ()), *change.join} - claimed):
        return _NOT_ALLOWED
    before = rooms.split() if change.rooms is None else change.rooms
    after = {*before}.difference(change.leave).union(change.join, claimed)
    return _TOO_MANY if len(after) > ROOMS_MAX else _text(after)


def renewed(rooms: str, old: RoomClaim, new: RoomClaim, mode: RoomMode) -> str:
    """Return the rooms of a session whose new token claims `new`."""
    claimed = old.inside.split()
    return _with_claimed((name for name in rooms.split() if name not in claimed), new, mode)


def may_watch(room: str, claim: RoomClaim, mode: RoomMode) -> bool:
    """Whether a client may watch a room, and query it."""
    if mode != "claimed":
        return mode == "open"
    return claim.join.includes(room) or claim.watch.includes(room) or room in claim.inside.split()


def shows_members(claim: RoomClaim, mode: RoomMode) -> bool:
    """Whether a client may be shown who is in the rooms that it watches, if the server shows it at all."""
    return claim.members is True or (mode == "open" and claim.members is None)


def _with_claimed(names: Iterable[str], claim: RoomClaim, mode: RoomMode) -> str:
    """Return the claimed rooms, and as many of the others that may be joined as fit, the first ones."""
    claimed = claim.inside.split()
    allowed = [each for each in names if each not in claimed and _may_join(each, claim, mode)]
    others = [*dict.fromkeys(allowed)][: ROOMS_MAX - len(claimed)]
    return _text([*claimed, *others])


def _may_join(name: str, claim: RoomClaim, mode: RoomMode) -> bool:
    return mode == "open" or claim.join.includes(name)


def _text(names: Iterable[str]) -> str:
    return " ".join(sorted(names))  # by code points, which is the order of the bytes of UTF-8
