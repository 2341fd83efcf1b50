"""The promises as rules about what clients did and what the streams contain: pure.

The simulation and the runs on real processes use the same rules; only their source of truth differs.

doubled    The events of a user alternate, and each offline event names the entry id of its online event. What
           Redis has lost is forgotten here too.
risen      A session whose end was reported never comes online again, unless Redis lost the end.
disorder   Entry ids of a stream rise, whatever Redis loses.
shown      An "away" or "update" entry belongs to the present online period and reports a change: "away" that
           the user went away or came back, "update" any other status, which holds from then on, or other
           `meta` or `private` with the same status and time. A "rooms" entry reports other rooms than known,
           and which of those the user has left; an offline event names the ones known.
early      A session ends only for a reason that its client gave, and no earlier.
false      No offline event of a user one of whose sessions lives and is known to Redis.
converged  Records, nodes and clients agree, and so does the last event of each user.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from presence.protocol import Code

EPSILON_S: Final = 0.002  # times travel in whole milliseconds
TRANSITIONS: Final = frozenset({"online", "offline"})
AWAY, BACK = "3", "4"  # codes of an "away" entry
UPDATED, LOGOUT = "5", "100"
CAME: Final = {"1", "2"}  # codes of a device that came: login and returned


class Broken(NamedTuple):
    """A broken promise: the rule, and what happened."""

    rule: str
    text: str


# Online periods: `doubled`, `risen`, `disorder`


class Periods:
    """Follows the events of all users.

    Attributes:
        online: uid to the entry id of the present period's online event.
        last_events: by uid, the type of the last event, even if Redis has lost it since.
        data_lost_at: when Redis last lost data; seconds, on the clock of all times here.
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

    def data_lost(self, at: float, snapshot: dict[str, str] | None) -> None:
        """Redis went back to its state of a snapshot; None: it is empty."""
        self.data_lost_at = at
        self.online = dict(snapshot) if snapshot else {}

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
        online_id, self.last_events[uid] = self.online.pop(uid, None), "offline"
        if online_id is None:
            return [Broken("doubled", f"{uid} offline again, {session}")]
        if online_id != since_id:
            return [Broken("doubled", f"{uid} offline names {since_id}, was {online_id}")]
        return []


def id_order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)


# Status and meta: `shown`


class ShownState(NamedTuple):
    """How a user is shown to others.

    Attributes:
        status: "online", "away", "busy", "dnd" or "invisible".
        since_ms: Unix ms since when the status holds, as digits.
        said: the texts of `meta` and `private`; "" without any.
        id: the entry that reported it last.
        period: the entry of this period's online event.
        devices: the names of the user's devices; only with device events.
        rooms: the names of the user's rooms.
    """

    status: str
    since_ms: str
    said: tuple[str, str]
    id: str
    period: str
    devices: frozenset[str] = frozenset()
    rooms: frozenset[str] = frozenset()


class ShownStates(NamedTuple):
    """How all users are shown at one moment."""

    shown: dict[str, ShownState]
    offline: dict[str, str]


class Showing:
    """Follows the events of all users.

    Attributes:
        shown: by uid; only of users who are online.
        offline: by uid, how clients are shown a user who is offline or invisible, as `public` in an entry has
            it; "" if nothing is known.
    """

    def __init__(self) -> None:
        self.shown: dict[str, ShownState] = {}
        self.offline: dict[str, str] = {}

    def snapshot(self) -> ShownStates:
        """Return what `data_lost` needs if Redis goes back to this moment."""
        return ShownStates(dict(self.shown), dict(self.offline))

    def data_lost(self, snapshot: ShownStates | None) -> None:
        """Redis went back to its state of a snapshot; None: it is empty."""
        shown, offline = snapshot or ShownStates({}, {})
        self.shown, self.offline = dict(shown), dict(offline)

    def check_entry(self, entry_id: str, fields: Mapping[str, str]) -> list[Broken]:
        """Check an entry of a user, of any type."""
        uid = fields["uid"]
        broken = self._check_public(entry_id, fields) if fields["type"] != "rooms" else []
        match fields["type"]:
            case "online":
                said = _said(fields)
                devices = frozenset({fields["device"]})
                self.shown[uid] = ShownState(
                    _status(fields), fields["since_ms"], said, entry_id, entry_id, devices, _rooms(fields)
                )
            case "offline":
                before = self.shown.pop(uid, None)
                if before and before.rooms != _rooms(fields):
                    broken.append(Broken("shown", f"{entry_id} {fields} of {uid} in {before.rooms}"))
            case "rooms":
                broken += self._check_rooms(entry_id, fields)
            case "away" | "update":
                broken += self._check_change(entry_id, fields)
            case "device":
                broken += self._check_device(entry_id, fields)
        return broken

    def _check_public(self, entry_id: str, fields: Mapping[str, str]) -> list[Broken]:
        """Check what clients are shown of a user who is offline or invisible."""
        uid, at_ms = fields["uid"], fields["at_ms"]
        if "invisible" not in fields:
            if fields["type"] == "offline":
                self.offline[uid] = f"{fields['code']} {entry_id} {at_ms} {fields['last_seen_ms']}"
            return []
        before, public = self.shown.get(uid), fields["public"].replace("*", entry_id)
        wanted = self.offline.get(uid, "")
        if fields["type"] == "update" and before is not None and before.status != "invisible":
            wanted = f"{LOGOUT} {entry_id} {at_ms} {at_ms}"
        self.offline[uid] = public
        return [] if public == wanted else [Broken("shown", f"{entry_id}: {uid} as {public}, not {wanted}")]

    def _check_change(self, entry_id: str, fields: Mapping[str, str]) -> list[Broken]:
        uid, before = fields["uid"], self.shown.get(fields["uid"])
        if before is None or before.period != fields["since_id"]:
            text = f"{entry_id} of {uid} is of the period {fields['since_id']}, not {before}"
            return [Broken("shown", text)]
        after = ShownState(_status(fields), fields["status_ms"], _said(fields), entry_id, *before[4:])
        self.shown[uid] = after
        is_new = after.status != before.status and after.since_ms == fields["at_ms"]
        is_hidden = "invisible" in {after.status, before.status}
        if fields["type"] == "away":
            code = AWAY if after.status == "away" else BACK if before.status == "away" else ""
            is_right = is_new and fields["code"] == code and not is_hidden
        else:
            is_new = is_new and (is_hidden or "away" not in {after.status, before.status})
            is_right = is_new or (after[:2] == before[:2] and after.said != before.said)
            is_right = is_right and fields["code"] == UPDATED
        return [] if is_right else [Broken("shown", f"{fields['type']} {after} of {uid} after {before}")]

    def _check_device(self, entry_id: str, fields: Mapping[str, str]) -> list[Broken]:
        """Check that a device came that was not there, or one that was there went; nothing else changed."""
        uid, device, before = fields["uid"], fields["device"], self.shown.get(fields["uid"])
        if before is None or before.period != fields["since_id"]:
            return [
                Broken("shown", f"{entry_id} of {uid} is of the period {fields['since_id']}, not {before}")
            ]
        came = fields["code"] in CAME
        devices = before.devices | {device} if came else before.devices - {device}
        self.shown[uid] = before._replace(id=entry_id, devices=devices)
        listed = {each["device"] for each in json.loads(fields["devices"])}
        is_the_same = (_status(fields), fields["status_ms"], _said(fields)) == before[:3]
        is_right = devices != before.devices and listed == devices and is_the_same
        return [] if is_right else [Broken("shown", f"{entry_id} {fields} of {uid} after {before}")]

    def _check_rooms(self, entry_id: str, fields: Mapping[str, str]) -> list[Broken]:
        """Check that the rooms have changed, and nothing else; it is no entry of the user's state."""
        uid, before, rooms = fields["uid"], self.shown.get(fields["uid"]), _rooms(fields)
        if before is None or before.period != fields["since_id"]:
            return [
                Broken("shown", f"{entry_id} of {uid} is of the period {fields['since_id']}, not {before}")
            ]
        self.shown[uid] = before._replace(rooms=rooms)
        is_right = rooms != before.rooms and _rooms(fields, "rooms_left") == before.rooms - rooms
        is_the_same = (_status(fields), fields["status_ms"]) == before[:2]
        if is_right and is_the_same:
            return []
        return [Broken("shown", f"{entry_id} {fields} of {uid} after {before}")]


def _rooms(fields: Mapping[str, str], name: str = "rooms") -> frozenset[str]:
    return frozenset(fields[name].split(" ")) if name in fields else frozenset()


def _status(fields: Mapping[str, str]) -> str:
    return "invisible" if "invisible" in fields else fields.get("status", "online")


def _said(fields: Mapping[str, str]) -> tuple[str, str]:
    return fields.get("meta", ""), fields.get("private", "")


# Ends: `early`, `false`


class Given(NamedTuple):
    """What the client had done that allows its session to end.

    Attributes:
        silent_s: seconds since its last packet was readable.
        closed_s: seconds since its FIN or reset was readable; None: the connection was open.
        has_logged_out: whether its logout was readable.
        has_successor: whether its device has logged in more than once.
    """

    silent_s: float
    closed_s: float | None
    has_logged_out: bool
    has_successor: bool


class Promised(NamedTuple):
    """What a session was promised, in seconds: its time-out, and the grace after a lost connection."""

    idle_timeout: float
    grace: float


def is_justified(code: int, given: Given, promised: Promised) -> bool:
    """Whether a node may have ended a session for that reason at that moment."""
    is_silent = given.silent_s >= promised.idle_timeout - EPSILON_S
    match code:
        case Code.IDLE_TIMEOUT:
            return is_silent
        case Code.CLOSED:
            return is_silent or (given.closed_s is not None and given.closed_s >= promised.grace - EPSILON_S)
        case Code.LOGOUT:
            return given.has_logged_out
        case Code.REPLACED:
            return given.has_successor
    return False


class Claim(NamedTuple):
    """What speaks for a session of a user at an offline event; times in seconds on one clock.

    Attributes:
        logged_in_at: when its login was granted, at the latest; an end decided earlier precedes it.
        known_from: from when on Redis must know it.
        alive_until: until when it surely lives.
    """

    logged_in_at: float
    known_from: float
    alive_until: float


NO_CLAIM = Claim(math.inf, math.inf, -math.inf)


def is_false_offline(claim: Claim, decided: float, reported: float) -> bool:
    """Whether an offline event, decided and reported no earlier than that, is false."""
    return claim.logged_in_at < decided and claim.known_from <= reported < claim.alive_until


# After the run: `converged`, and the other rules for what is left in the streams


class RemainingEvent(NamedTuple):
    """An event still in a stream, of any type; `since_id` is "" for an online event."""

    uid: str
    type: str
    id: str
    since_id: str


def differences(
    what: str, left: Mapping[tuple[str, str], object], right: Mapping[tuple[str, str], object]
) -> list[Broken]:
    """Return where two views of the sessions differ; both by uid and device."""
    if left == right:
        return []
    return [
        Broken("converged", f"{what}: {key} {left.get(key)} and {right.get(key)}")
        for key in sorted({*left, *right})
        if left.get(key) != right.get(key)
    ]


def check_last_events(entries: Iterable[RemainingEvent], online: set[str]) -> list[Broken]:
    """Compare what is left of the streams, in order, with the users who have a record."""
    broken = []
    last: dict[str, RemainingEvent] = {}
    for entry in entries:
        before = last.get(entry.uid)
        if entry.type not in TRANSITIONS:
            if before and (before.type, before.id) != ("online", entry.since_id):
                broken.append(Broken("shown", f"{entry.uid} {entry.type} after {before} in what is left"))
            continue
        is_twin = entry.type == (before.type if before else "offline")
        if is_twin or (entry.type == "offline" and before and entry.since_id != before.id):
            broken.append(Broken("doubled", f"{entry.uid} {entry.type} after {before} in what is left"))
        last[entry.uid] = entry
    ends_online = {uid for uid, entry in last.items() if entry.type == "online"}
    broken.extend(
        Broken("converged", f"{uid}: last event {last.get(uid)}, record {uid in online}")
        for uid in sorted(ends_online ^ online)
    )
    return broken
