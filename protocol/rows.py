"""Rows: the states of users as arrays, in packets to clients that take them. See SPEC.md.

Tests: `tests/protocol/test_rows.py`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from presence.protocol.constants import Code

Row: TypeAlias = list[Any] | str
"""``[uid, status, code, ms, n, since, seen, meta, devices]`` without nils at the end, or only the uid."""

_OFFLINE: Final = "offline"
_ELEMENTS: Final = 9
_NILS: Final = (None,) * _ELEMENTS
_ID: Final = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")
_CODES: Final[Mapping[str, int]] = {code.reason: int(code) for code in Code}
_REASONS: Final[Mapping[int, str]] = {int(code): code.reason for code in Code}


def to_row(uid: str, state: Mapping[str, Any]) -> Row:
    """Return the row of a state: a map as in answers, with the reason of a change or of an offline user.

    An id that is not two numbers is left out.
    """
    status, reason, since_ms, last_seen_ms = map(state.get, ("status", "reason", "since_ms", "last_seen_ms"))
    ms, n = _numbers(state.get("id"))
    row = [
        uid,
        None if status == _OFFLINE else status,
        _CODES.get(reason, reason) if reason else None,
        ms,
        n,
        None if since_ms is None else since_ms - (ms or 0),
        None if last_seen_ms is None else (since_ms or 0) - last_seen_ms,
        state.get("meta"),
        state.get("devices"),
    ]
    while row[-1] is None:
        row.pop()
    return uid if len(row) == 1 else row


def from_row(row: Row) -> tuple[str, dict[str, Any]]:
    """Return the user and the state of a valid row; the reason of an unknown number is its digits."""
    elements = [row] if isinstance(row, str) else row
    uid, status, code, ms, n, since, seen, meta, devices = (*elements, *_NILS)[:_ELEMENTS]
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


def _numbers(id: str | None) -> tuple[int, int] | tuple[None, None]:
    found = _ID.fullmatch(id or "")
    return (int(found[1]), int(found[2])) if found else (None, None)
