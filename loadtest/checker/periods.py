"""Who is online by the streams: the rules `doubled`, `risen` and `disorder`."""

from __future__ import annotations

import math

from loadtest.checker import Broken


class Periods:
    """Follows the events of all users.

    Attributes:
        online: uid to the entry id of the online event of the present period.
        told: by uid, the type of the event that subscribers heard last, whatever Redis forgot.
        forgot_at: when Redis last forgot something; seconds on the clock of all moments here.
    """

    def __init__(self) -> None:
        self.online: dict[str, str] = {}
        self.last_events: dict[str, str] = {}
        self.data_lost_at = -math.inf
        self._ended_at: dict[str, float] = {}
        self._last_ids: dict[str, tuple[int, int]] = {}

    def session_ended(self, session: str, at: float) -> None:
        """Redis has applied the end of a session; only the first time counts."""
        self._ended_at.setdefault(session, at)

    def snapshot(self) -> dict[str, str]:
        """Return what `data_lost` needs if Redis goes back to this moment."""
        return dict(self.online)

    def data_lost(self, at: float, kept: dict[str, str] | None) -> None:
        """Redis went back to its state of a snapshot; None: it is empty."""
        self.data_lost_at = at
        self.online = dict(kept) if kept else {}

    def check_order(self, uid: str, entry_id: str) -> list[Broken]:
        """Check the id of a user's new entry."""
        last, this = self._last_ids.get(uid, (0, 0)), id_order(entry_id)
        self._last_ids[uid] = this
        return [] if this > last else [Broken("disorder", f"{entry_id} of {uid} after {last}")]

    def user_online(self, uid: str, session: str, entry_id: str, at: float) -> list[Broken]:
        broken = []
        if uid in self.online:
            broken.append(Broken("doubled", f"{uid} online again, {session}"))
        self.online[uid], self.last_events[uid] = entry_id, "online"
        ended_at = self._ended_at.get(session, math.inf)
        if ended_at < at and self.data_lost_at < ended_at:
            broken.append(Broken("risen", f"{session} of {uid} had ended at {ended_at:.3f}"))
        return broken

    def user_offline(self, uid: str, session: str, since_id: str) -> list[Broken]:
        """`since_id`: the online event that the offline event names."""
        began, self.last_events[uid] = self.online.pop(uid, None), "offline"
        if began is None:
            return [Broken("doubled", f"{uid} offline again, {session}")]
        if began != since_id:
            return [Broken("doubled", f"{uid} offline names {since_id}, was {began}")]
        return []


def id_order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)
