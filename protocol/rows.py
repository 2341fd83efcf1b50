"""Rows: the states of users as arrays, in packets to clients that take them. See SPEC.md.

Tests: `tests/protocol/test_rows.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from presence.protocol.constants import Code

Row: TypeAlias = list[Any] | str
"""``[uid, status, code, ms, n, since, seen, meta, devices]`` without nils at the end, or only the uid."""

RoomRow: TypeAlias = list[Any]
"""``[room, count]``, ``[room, count, members]``, ``[room, count, joined, left]``, or ``[room, nil]``."""

_OFFLINE: Final = "offline"
ROW_ELEMENTS: Final = 9
_NILS: Final = (None,) * ROW_ELEMENTS
_KEYS: Final = ("status", "reason", "since_ms", "last_seen_ms", "id", "meta", "devices")
_ID_DIGITS: Final = 40  # of the largest one
_CODES: Final[Mapping[str, int]] = {code.reason: int(code) for code in Code}
_REASONS: Final[Mapping[int, str]] = {int(code): code.reason for code in Code}


def to_row(uid: str, state: Mapping[str, Any]) -> Row:
    """Return the row of a state: a map as in answers, with the reason of a change or of an offline user."""
    return make_row(uid, *map(state.get, _KEYS))


def make_row(  # noqa: PLR0917 - in the order of a state
    uid: str,
    status: str | None,
    reason: str | None = None,
    since_ms: int | None = None,
    last_seen_ms: int | None = None,
    id: str | None = None,
    meta: Mapping[str, Any] | None = None,
    devices: Sequence[Mapping[str, Any]] | None = None,
) -> Row:
    """Return the row of a state; an id that is not two numbers is left out."""
    first, _, second = (id or "").partition("-")
    has_id = first.isdecimal() and second.isdecimal() and len(first) + len(second) <= _ID_DIGITS
    ms, n = (int(first), int(second)) if has_id else (None, None)
    row: list[Any] = [
        uid,
        None if status == _OFFLINE else status,
        _CODES.get(reason, reason) if reason else None,
        ms,
        n,
        None if since_ms is None else since_ms - (ms or 0),
        None if last_seen_ms is None else (since_ms or 0) - last_seen_ms,
    ]
    if meta is not None or devices is not None:
        row += meta, devices
    while row[-1] is None:
        row.pop()
    return uid if len(row) == 1 else row


def from_row(row: Row) -> tuple[str, dict[str, Any]]:
    """Return the user and the state of a valid row; the reason of an unknown number is its digits."""
    elements = [row] if isinstance(row, str) else row
    uid, status, code, ms, n, since, seen, meta, devices = (*elements, *_NILS)[:ROW_ELEMENTS]
    since_ms = None if since is None else (ms or 0) + since
    state = {
        "status": status or _OFFLINE,
        "since_ms": since_ms,
        "last_seen_ms": None if seen is None else (since_ms or 0) - seen,
        "id": None if ms is None else f"{ms}-{n}",
    }
    if code is not None:
        state["reason"] = code if isinstance(code, str) else _REASONS.get(code, str(code))
    if meta is not None:
        state["meta"] = meta
    if devices is not None:
        state["devices"] = devices
    return uid, state
