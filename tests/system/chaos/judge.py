"""Holds what the streams say against what the clients truly did: pure, event by event and second by second.

Beside the rules of `loadtest.checker`, which the simulation's judge uses too:

invented   Each event names a session that its user has asked for.
unfounded  An end as node_down has a reason in what was done to the session's node, or to Redis.
gap        No node drops transitions: the outboxes are large enough.
missing    Who certainly lives, and has for long enough, is online by the stream.
late       Who is certainly gone, and has been for longer than every bound allows, is not.
exile      No goodbye for good to the only connection of a client.
displaced  Nor one that allows a return, unless another login may have come later, or seems to have.
admitted   Who is banned is let in by no node, from a second after the ban on.
isolation  No connection ends without a word, unless its node or its path was in trouble.

The rules on rooms are in `rooms`. What the clients with the libraries did is not known in such detail: their
events alternate, and none says that they logged out or were refused.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from loadtest.checker import (
    Broken,
    Given,
    Periods,
    Promised,
    Showing,
    ShownStates,
    is_false_offline,
    is_justified,
)
from loadtest.servers import Setup
from loadtest.stream_events import StreamEvent
from presence.protocol import Code
from tests.system.chaos.bounds import RECOVERY_S, Bounds, Troubles, is_order_unsure
from tests.system.chaos.plan import Place
from tests.system.chaos.rooms import RoomEntries, RoomEntry, ToldRooms
from tests.system.chaos.truth import DataLoss, DeviceLogin, SavedState, StreamItem, User

STORY_S = 25.0  # before a broken promise, of what was done
BAN_S = 1.0  # promised: so soon after a ban it takes effect
UNASKED = frozenset({Code.LOGOUT, Code.BACKGROUND, Code.KICKED, Code.BANNED, Code.AUTH_EXPIRED})
MEMORY_S = 180.0  # troubles that ended longer ago explain nothing any more


class ChaosFinding(NamedTuple):
    """A broken promise, when it was broken, and the faults shortly before."""

    at: float
    broken: Broken
    recent_faults: str


class ChaosJudge:
    """Judges what the streams say by what the clients did; `findings` has what is broken.

    Args:
        users: what the clients of the crowd did, by uid.
        libraries: the users of clients that stay connected.

    Attributes:
        events: how many of each type were judged.
        lost_by_rollback: events and goodbyes that followed from a data loss; see
            `Bounds.is_lost_by_rollback`.
        expected: how often users had to be online or gone, or were in doubt.
    """

    def __init__(
        self,
        users: Mapping[str, User],
        troubles: Troubles,
        setup: Setup,
        libraries: Collection[str] = frozenset(),
    ) -> None:
        self.findings: list[ChaosFinding] = []
        self.events: Counter[str] = Counter()
        self.room_reasons: Counter[str] = Counter()  # of entries of the streams of rooms
        self.lost_by_rollback = 0
        self.expected: Counter[str] = Counter()
        self.periods = Periods()
        self.showing = Showing()
        self._users = users
        self._libraries = libraries
        self._troubles = troubles
        self._setup = setup
        self.rooms = RoomEntries()
        self._snapshots: dict[int, tuple[dict[str, str], ShownStates, ToldRooms]] = {}
        self._reported: dict[str, str] = {}  # by user, what was reported already, until it is right again
        self._bounds = Bounds(setup, [])

    def recent_faults(self, at: float) -> str:
        """Return the faults shortly before a moment as text."""
        return ", ".join(
            f"{each.kind.name}@{each.place} {at - each.begin:.1f} to {at - each.end:.1f} s before"
            for each in self._troubles.recent(at - STORY_S)
            if each.begin <= at
        )

    def add_finding(self, at: float, rule: str, text: str) -> None:
        self.findings.append(ChaosFinding(at, Broken(rule, text), self.recent_faults(at)))

    def judge_items(self, items: Iterable[StreamItem], now: float) -> None:
        """Judge the items up to a moment; the clients' actions until then are known."""
        self._update_bounds(now)
        for each in items:
            match each:
                case SavedState():
                    snapshots = self.periods.snapshot(), self.showing.snapshot(), self.rooms.snapshot()
                    self._snapshots[each.number] = snapshots
                case DataLoss():
                    nothing = None, None, None
                    online, shown, rooms = (
                        nothing if each.number is None else self._snapshots.pop(each.number)
                    )
                    self.periods.data_lost(each.written_at, online)
                    self.showing.data_lost(shown)
                    self.rooms.data_lost(rooms)
                case RoomEntry():
                    self.events[f"room {each.type}"] += 1
                    self.room_reasons[each.reason] += 1
                    for broken in self.rooms.check_entry(each):
                        self.add_finding(each.written_at, *broken)
                case StreamEvent():
                    self.events[each.type] += 1
                    self._judge_event(each)

    def _update_bounds(self, now: float) -> None:
        troubles = self._troubles.recent(now - MEMORY_S)
        self._bounds = Bounds(self._setup, troubles)

    def _judge_event(self, event: StreamEvent) -> None:
        if event.type == "gap":
            self.add_finding(event.written_at, "gap", f"{event.node} dropped transitions: {event.id}")
            return
        user = self._users.get(event.uid)
        if user is None and event.uid not in self._libraries:
            self.add_finding(event.written_at, "invented", f"{event} of an unknown user")
            return
        broken = self.periods.check_order(event.uid, event.id)
        broken += self.showing.check_entry(event.id, event.fields)
        if event.type == "online":
            broken += self.periods.user_online(event.uid, event.session, event.id, event.written_at)
        elif event.type == "offline":
            broken += self.periods.user_offline(event.uid, event.session, event.since_id)
            if event.code != Code.NODE_DOWN:  # after which it may return
                self.periods.session_ended(event.session, event.written_at)
        broken += self._check_client(event, user) if user else _check_library(event)
        for each in broken:
            self.add_finding(event.written_at, each.rule, each.text)

    def _check_client(self, event: StreamEvent, user: User) -> list[Broken]:
        """Compare an event with what its client did."""
        login = user.find_login(event.session, event.written_at)
        broken = []
        if login is None:
            broken.append(Broken("invented", f"{event} names a session that {event.uid} did not ask for"))
        if event.type == "offline":
            broken += self._check_reason(event, user, login) if login else []
            broken += self._check_false(event, user)
        return broken

    def _check_reason(self, event: StreamEvent, user: User, login: DeviceLogin) -> list[Broken]:
        earliest, latest = event.decided_between
        if event.code == Code.NODE_DOWN:
            if self._bounds.explains_node_down(login, event.written_at):
                return []
            return [
                Broken("unfounded", f"{event.uid} node_down, and nothing was done: {_story(event, user)}")
            ]
        closed_at = self._bounds.closed_at(login)
        given = Given(
            silent_s=latest - self._bounds.last_packet_at(login, earliest),
            closed_s=latest - closed_at if closed_at <= latest else None,
            has_logged_out=login.logout_at <= latest,
            has_successor=user.logins[-1] is not login,
        )
        if event.code == Code.BANNED and login.banned_at <= latest:
            return []
        idle_timeout = min(login.idle_timeouts(self._setup.idle_timeout, at)[0] for at in (earliest, latest))
        if is_justified(event.code, given, Promised(idle_timeout, self._setup.grace)):
            return []
        return [Broken("early", f"{event.uid} {Code(event.code).reason}, {given}: {_story(event, user)}")]

    def _check_false(self, event: StreamEvent, user: User) -> list[Broken]:
        ended = user.find_login(event.session, event.written_at)
        for login in reversed([*user.logins]):
            if login.sent_at > event.decided_between[0]:  # later than the decision
                if (
                    login.granted_at < event.written_at
                    and self._bounds.alive_until(login, event.written_at) <= event.written_at
                ):
                    return []  # and over: when it was told, he was offline
                continue
            if ended and ended.is_proxied and is_order_unsure(ended, login):
                return []  # it arrived last, and replaced the other one
            claim = self._bounds.claim(login, event.written_at)
            if is_false_offline(claim, event.decided_between[0], event.written_at):
                if self._bounds.is_lost_by_rollback(login, event.written_at):
                    self.lost_by_rollback += 1
                    return []
                text = f"{event.uid} offline though {login.session} lives, {claim}: {_story(event, user)}"
                return [Broken("false", text)]
            break
        return []

    def check_users(self, now: float) -> None:
        """Compare each user's state by the stream with the expected one; all items until then are judged."""
        self._update_bounds(now)
        for uid, user in self._users.items():
            wanted = self._expected_state(user, now)
            self.expected[wanted] += 1
            is_online = uid in self.periods.online
            wrong = {"online": "missing" if not is_online else "", "gone": "late" if is_online else ""}.get(
                wanted, ""
            )
            if wrong and self._reported.get(uid) != wrong:
                self.add_finding(now, wrong, f"{uid} is {wanted}, not by the stream: {_logins(user, now)}")
            if wanted != "doubt":
                self._reported[uid] = wrong

    def _expected_state(self, user: User, now: float) -> str:
        if not user.logins:
            return "gone"
        newest = user.logins[-1]
        follows = any(each.place == newest.place for each in [*user.logins] if each is not newest)
        known_by = self._bounds.known_by(newest, now, follows=follows)
        if newest.granted_at < now and known_by <= now < self._bounds.alive_until(newest, now):
            return "online"
        for login in [*user.logins]:
            if self._bounds.offline_by(login, now) > now:
                return "doubt"
        return "gone"

    def login_granted(self, uid: str, login: DeviceLogin) -> None:
        """A client is in: no ban that has got round by then may be in force, unless a fault was at work."""
        for ban in self._users[uid].bans:
            if ban.known_at + BAN_S < login.sent_at and login.granted_at < ban.ends_at - BAN_S:
                is_excused = any(
                    each.begin <= login.granted_at
                    and (each.scope is Place.REDIS or each.place == login.place)
                    for each in self._troubles.recent(ban.known_at - RECOVERY_S)
                )
                if not is_excused:
                    text = f"{uid} is in though banned {login.sent_at - ban.known_at:.3f} s before"
                    self.add_finding(login.granted_at, "admitted", text)

    def connection_lost(
        self, uid: str, login: DeviceLogin, at: float, reason: str, *, is_for_good: bool
    ) -> None:
        """A client's only connection ended unexpectedly; `reason` is the server's, or ""."""
        bounds = Bounds(self._setup, self._troubles.recent(at - MEMORY_S))
        user = self._users[uid]
        if is_for_good and not any(
            other.is_proxied and other.granted_at == math.inf
            for other in [*user.logins]
            if other is not login
        ):
            self.add_finding(at, "exile", f"{uid} was told {reason} for good: {_logins(user, at)}")
        if login.code == Code.CLOSED and bounds.is_lost_by_rollback(login, at):
            self.lost_by_rollback += 1
        elif login.code == Code.CLOSED and not bounds.explains_displacement(login, [*user.logins], at):
            self.add_finding(at, "displaced", f"{uid} has to log in again: {_logins(user, at)}")
        if not reason and login.banned_at > at and not bounds.explains_loss(login, at):
            self.add_finding(
                at, "isolation", f"{uid} lost its connection, and nothing was done: {_logins(user, at)}"
            )


def _check_library(event: StreamEvent) -> list[Broken]:
    """Compare an event with the little that is known of a client that stays connected."""
    if event.type == "offline" and event.code in UNASKED:
        return [Broken("early", f"{event.uid} {Code(event.code).reason}, and did not ask for it: {event}")]
    return []


def _story(event: StreamEvent, user: User) -> str:
    return f"{event}; {_logins(user, event.written_at)}"


def _logins(user: User, at: float) -> str:
    """Return a client's last logins as text, in seconds before a moment."""

    def ago(moment: float) -> str:
        return "-" if moment == math.inf else f"{at - moment:.3f}"

    return " | ".join(
        f"{each.session or '?'} at {each.place}{'p' * each.is_proxied}{'w' * each.is_websocket} "
        f"begun {ago(each.sent_at)} "
        f"entered {ago(each.granted_at)} last beats {[ago(beat) for beat in each.packets[-3:]]} "
        f"silent {ago(each.silent_at)} logout {ago(each.logout_at)} closed {ago(each.closed_at)} "
        f"lost {ago(each.lost_at)} {each.code}"
        for each in list(user.logins)[-3:]
    )
