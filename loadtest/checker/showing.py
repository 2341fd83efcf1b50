"""How users who are online show themselves, by the streams: the rule `shown`.

shown      What tells that a user went away, came back or shows other `meta` belongs to the online period that
           lasts, and tells a change: "away" another status, which stands since then, "update" other `meta`,
           while the status and its moment stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from loadtest.checker import Broken

CODES: Final = {"away": "3", "online": "4"}  # of an "away" entry, by the status that it tells
UPDATED: Final = "5"


class ShownState(NamedTuple):
    """How a user shows himself.

    Attributes:
        status: "online" or "away".
        since_ms: digits of the Unix ms since when that stands.
        meta: the text of `meta`; "" without any.
        id: the entry that told it last.
        period: the entry of the online event of this period.
    """

    status: str
    since_ms: str
    meta: str
    id: str
    period: str


class Showing:
    """Follows the events of all users.

    Attributes:
        shown: by uid; only of users who are online.
    """

    def __init__(self) -> None:
        self.shown: dict[str, ShownState] = {}

    def snapshot(self) -> dict[str, ShownState]:
        """Return what `data_lost` needs if Redis goes back to this moment."""
        return dict(self.shown)

    def data_lost(self, kept: Mapping[str, ShownState] | None) -> None:
        """Redis went back to its state of a snapshot; None: it is empty."""
        self.shown = dict(kept) if kept else {}

    def check_entry(self, entry_id: str, fields: Mapping[str, str]) -> list[Broken]:
        """Check an entry of a user, of any type."""
        uid, meta = fields["uid"], fields.get("meta", "")
        match fields["type"]:
            case "online":
                status = fields.get("status", "online")
                self.shown[uid] = ShownState(status, fields["since_ms"], meta, entry_id, entry_id)
            case "offline":
                self.shown.pop(uid, None)
            case "away" | "update":
                return self._check_change(entry_id, fields)
        return []

    def _check_change(self, entry_id: str, fields: Mapping[str, str]) -> list[Broken]:
        uid, before = fields["uid"], self.shown.get(fields["uid"])
        if before is None or before.period != fields["since_id"]:
            return [
                Broken("shown", f"{entry_id} of {uid} is of the period {fields['since_id']}, not {before}")
            ]
        told = ShownState(
            fields["status"], fields["status_ms"], fields.get("meta", ""), entry_id, before.period
        )
        self.shown[uid] = told
        if fields["type"] == "away":
            is_so = told.status != before.status and told.since_ms == fields["at_ms"]
            is_so = is_so and fields["code"] == CODES.get(told.status)
        else:
            is_so = told[:2] == before[:2] and told.meta != before.meta and fields["code"] == UPDATED
        return [] if is_so else [Broken("shown", f"{fields['type']} {told} of {uid} after {before}")]
