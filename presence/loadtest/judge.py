"""Compares each event with what the device that it names did, and reports missing events.

No I/O and no clock: the load test reports what its devices did and which entries it read from the stream.

What is judged, for each device (T is the session's own idle time-out):

- online and offline alternate, and an offline event names the online event that it ends;
- no offline event for silence before T after the last packet, none for a lost connection within its grace,
  none for a device that came back in time, none for a reason that the device did not give;
- an offline event within T + tick + slack of the last packet of a device that fell silent, within
  grace + tick + slack of a closed connection, within the slack of a logout; an online event within the
  slack of a login. For a logout and a login on another node within `OVERTAKEN_S` there may be neither.
  The server extends the grace of a device that reconnects often. The event says so; a missing event of such
  a device is reported T + tick + slack after its last packet.

In case of doubt the server is right: what lies within the bounds of the clocks is never called broken.

Times are monotonic seconds of this process. A packet is known by the moments right before and right after it
was handed to the kernel; on one machine the server could read it from some moment in between.
"""

import heapq
import math
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from presence.protocol import Code

# A packet that comes while the server is already deciding about a slice of silent sessions is in a race.
RACE_S = 0.1

# A login so soon after the device's logout may be the first of the two in Redis, if it is on another node.
# Then it replaces the session, and neither has an event. Nothing beyond that is excused.
OVERTAKEN_S = 0.25
PACKETS_KEPT = 64  # packets remembered of a session: 25 idle time-outs, far above any lag of an event
_TIMES_KEPT = 2 * PACKETS_KEPT  # numbers in the array of them
SESSIONS_KEPT = 8  # of a device: its events lag behind by one or two
CLOCK_DRIFT = 1e-4  # seconds a second; twice what two bad quartzes are apart
FLAP_RETURNS = 6  # more logins of a device in this time may extend the server's grace
FLAPPING_S = 61.0  # the server counts the returns of a minute, and may see a login somewhat later
NO_EVENT_AT_ALL = "no online event in time, nor any other: are these the servers' Redis and prefix?"


class Sent(NamedTuple):
    """When a call on a connection began and ended."""

    start: float
    end: float


@dataclass(slots=True, eq=False)
class JudgedSession:
    """One login and what followed it."""

    device: "JudgedDevice"
    login: Sent  # when the login was sent
    # T of this session, seconds; as the server dictates it once it has answered
    idle_timeout: float = math.inf
    id: str | None = None  # the session's name in events; None until the server has sent it
    answered_at: float | None = None  # when the login's ok was read
    is_silent: bool = False  # whether the device means to send nothing for now
    # When the device did so
    logout: Sent | None = None
    closed: Sent | None = None
    is_ended: bool = False  # whether an offline event was seen, or was missed and reported
    offline_due: float | None = None  # when an offline event must have come; None: none has to
    successor: "JudgedSession | None" = None  # the device's next login, unless that was refused
    # Older sessions of the device, and when their offline events are due if this login is refused
    suspended: "tuple[tuple[JudgedSession, float], ...]" = ()
    # Of its last packets, two numbers each; the garbage collector need not scan them
    packet_times: "array[float]" = field(init=False)

    def __post_init__(self) -> None:
        self.packet_times = array("d", self.login)

    def add_packet(self, packet: Sent) -> None:
        times = self.packet_times
        times.extend(packet)
        if len(times) >= 2 * _TIMES_KEPT:
            del times[:_TIMES_KEPT]

    def last_packet(self, by: float = math.inf) -> Sent:
        """Return the last packet that was surely readable at `by`; the oldest known one if none was."""
        times = self.packet_times
        for at in range(len(times) - 2, -1, -2):
            if times[at + 1] <= by:
                return Sent(times[at], times[at + 1])
        return Sent(times[0], times[1])

    @property
    def last_read_by(self) -> float:
        """By when its last packet was read: a login may have waited until the server accepted it."""
        return max(self.last_packet().end, self.answered_at or 0.0)

    @property
    def should_be_online(self) -> bool:
        """Whether, by all that the device did, this session should be online."""
        return not (self.is_silent or self.is_ended or self.logout or self.closed)


class JudgedDevice:
    """One user with one device.

    Attributes:
        sessions: its last logins, the newest last.
        online_id: entry id of the present period's online event; None while the stream says offline.
        may_have_longer_grace: whether it has ever logged in so often that the server may extend its grace.
    """

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.sessions: deque[JudgedSession] = deque(maxlen=SESSIONS_KEPT)
        self.online_id: str | None = None
        self.may_have_longer_grace = False
        self._recent_logins: tuple[float, ...] = ()

    def count_login(self, at: float) -> None:
        """Record a login; too many in a minute may extend the grace."""
        if not self.may_have_longer_grace:
            recent = (each for each in self._recent_logins if at - each < FLAPPING_S)
            self._recent_logins = (*recent, at)
            self.may_have_longer_grace = len(self._recent_logins) > FLAP_RETURNS

    def find_session(self, session_id: str) -> JudgedSession | None:
        """Return the session that an event names.

        An event may precede the login's answer: a new name belongs to the newest login without one.
        """
        for session in reversed(self.sessions):
            if session.id == session_id:
                return session
        for session in reversed(self.sessions):
            if session.id is None:
                session.id = session_id
                return session
        return None


class ServerClockBounds:
    """The server's Unix milliseconds in this process's monotonic seconds, between two bounds.

    Each login's answer contains the server's time at a moment between request and answer, and so bounds the
    difference of the clocks from both sides. The bounds of many answers are intersected, and widened by the
    drift of clocks. Without any answer they are infinite.
    """

    def __init__(self) -> None:
        self._low = -math.inf
        self._high = math.inf
        self._at = 0.0

    def sample(self, asked: float, answered: float, server_ms: int) -> None:
        """Add the server's time, from an answer read at `answered` to a request sent at `asked`."""
        drift = CLOCK_DRIFT * (answered - self._at)
        # The server may round up or down to a millisecond.
        low, high = asked - (server_ms + 1) / 1000, answered - (server_ms - 1) / 1000
        self._low = max(low, self._low - drift)
        self._high = min(high, self._high + drift)
        if self._low > self._high:  # another server, or one that was started anew
            self._low, self._high = low, high
        self._at = answered

    def bounds(self, server_ms: int) -> tuple[float, float]:
        """Return the moments between which the server's clock showed `server_ms`."""
        return (server_ms - 1) / 1000 + self._low, (server_ms + 1) / 1000 + self._high


class EventDeadlines(NamedTuple):
    """The server's settings, and the slack; all in seconds."""

    tick_s: float  # the server's tick
    grace_s: float  # the server's disconnect grace
    slack_s: float  # for the way through Redis, and for what the machines under load are late


class DeviceFinding(NamedTuple):
    """One finding to report."""

    name: str  # what was measured
    seconds: float | None = None  # the measure; None where there is none
    broken: str | None = None  # the promise that was broken, always in the same words; None if all is well
    detail: str = ""  # the numbers of this very case


class DeviceJudge:
    """Takes facts and events, returns findings."""

    def __init__(self, deadlines: EventDeadlines) -> None:
        self.clock = ServerClockBounds()
        self.deadlines = deadlines
        self._devices: dict[str, JudgedDevice] = {}
        self._checks: list[tuple[float, int, JudgedSession]] = []
        self._sequence = 0
        self._is_closed = False
        self._has_events = False  # of these devices

    @property
    def device_count(self) -> int:
        return len(self._devices)

    # What a device did

    def login_sent(self, uid: str, login: Sent) -> JudgedSession:
        """A login was sent; unless it is refused, the device is back from what older sessions were due to."""
        device = self._devices.setdefault(uid, JudgedDevice(uid))
        session = JudgedSession(device, login)
        for old in device.sessions:
            if old.offline_due is not None and login.start < old.offline_due and not old.logout:
                session.suspended += ((old, old.offline_due),)
                old.offline_due = None
        device.count_login(login.start)
        if device.sessions:
            device.sessions[-1].successor = session
        device.sessions.append(session)
        return session

    def login_refused(self, session: JudgedSession) -> None:
        """The server refused a login: it never was a session, and what was due before it still is."""
        sessions = session.device.sessions
        sessions.remove(session)
        if sessions:
            sessions[-1].successor = None
        for old, due in session.suspended:
            if not old.is_ended:
                old.offline_due = due
                self._schedule_check(due, old)

    def login_answered(
        self, session: JudgedSession, at: float, session_id: str, idle_timeout: float, server_ms: int
    ) -> None:
        """The server's ok to the login was read at `at`."""
        session.answered_at = at
        session.suspended = ()
        session.id = session_id
        session.idle_timeout = idle_timeout
        self.clock.sample(session.login.start, at, server_ms)
        self._schedule_check(at + self.deadlines.slack_s, session)

    def packet_sent(self, session: JudgedSession, packet: Sent) -> None:
        """A whole packet was sent; it ends a silence."""
        session.add_packet(packet)
        session.is_silent = False
        if session.offline_due is not None and packet.start < session.offline_due:
            session.offline_due = None

    def silence_began(self, session: JudgedSession) -> None:
        session.is_silent = True
        tail_s = session.idle_timeout + self.deadlines.tick_s
        self._expect_end(session, session.last_read_by + tail_s)

    def logout_sent(self, session: JudgedSession, logout: Sent) -> None:
        """A logout was sent; its event may be read before its answer."""
        session.logout = logout

    def logout_confirmed(self, session: JudgedSession) -> None:
        if session.logout is not None:
            self._expect_end(session, session.logout.end)

    def connection_closed(self, session: JudgedSession, closed: Sent) -> None:
        """The device closed its connection without a logout."""
        session.closed = closed
        session.suspended = ()
        if session.answered_at is not None:
            grace_s = math.inf if session.device.may_have_longer_grace else self.deadlines.grace_s
            grace_ends_at = _grace_ends_at(session, closed.end, grace_s)
            self._expect_end(session, grace_ends_at + self.deadlines.tick_s)

    def connection_lost(self, session: JudgedSession, at: float) -> None:
        """The server, or the path to it, is gone: no event is due."""
        session.closed = Sent(session.last_packet().start, at)
        session.offline_due = None

    def goodbye_read(self, session: JudgedSession, now: float) -> DeviceFinding:
        """Judge the goodbye of a session that was ended for silence, read at `now`.

        When it was decided is not known, so a packet of the last `slack_s` does not count.
        """
        name, last = "goodbye idle_timeout", session.last_packet(now - self.deadlines.slack_s)
        due = last.start + session.idle_timeout
        detail = f"{session.device.uid} {session.id}: last packet {now - last.start:.3f} s before"
        if now < due:
            return DeviceFinding(name, None, "goodbye too early", detail)
        latest = max(last.end, session.answered_at or 0.0) + session.idle_timeout
        if now > latest + self.deadlines.tick_s + self.deadlines.slack_s:
            return DeviceFinding(name, None, "goodbye too late", detail)
        return DeviceFinding(name, now - due)

    def count_due(self) -> int:
        """Return how many offline events are due, now or later."""
        return len({session for _, _, session in self._checks if session.offline_due is not None})

    def close(self) -> int:
        """The devices are being stopped; return how many offline events were still due."""
        still_due = self.count_due()
        self._is_closed = True
        self._checks = []
        return still_due

    def _expect_end(self, session: JudgedSession, decided_by: float) -> None:
        if session.is_ended or session.device.sessions[-1] is not session:
            return
        end_by = decided_by + self.deadlines.slack_s
        session.offline_due = end_by if session.offline_due is None else min(end_by, session.offline_due)
        self._schedule_check(session.offline_due, session)

    def _schedule_check(self, deadline: float, session: JudgedSession) -> None:
        if not self._is_closed:
            self._sequence += 1
            heapq.heappush(self._checks, (deadline, self._sequence, session))

    # What the stream says

    def overdue(self, now: float) -> list[DeviceFinding]:
        """Return what is missing at `now`; all events read before must have been judged."""
        findings = []
        while self._checks and self._checks[0][0] <= now:
            deadline, _, session = heapq.heappop(self._checks)
            device = session.device
            if session.offline_due == deadline and not session.is_ended:
                session.offline_due, session.is_ended = None, True  # reported once
                reason = "logout" if session.logout else "closed" if session.closed else "idle_timeout"
                detail = self._describe_missing(session, now, now - deadline)
                if (pause_s := _overtaken_after(session)) is not None:
                    findings.append(DeviceFinding("logout overtaken by a login", pause_s))
                else:
                    findings.append(
                        DeviceFinding(f"offline {reason}", None, "no offline event in time", detail)
                    )
            is_login = session.answered_at is not None and (
                deadline == session.answered_at + self.deadlines.slack_s
            )
            if (
                is_login
                and device.online_id is None
                and device.sessions[-1] is session
                and session.should_be_online
            ):
                missing = "no online event in time" if self._has_events else NO_EVENT_AT_ALL
                findings.append(DeviceFinding("online", None, missing, device.uid))
        return findings

    def _describe_missing(self, session: JudgedSession, now: float, overdue_s: float) -> str:
        """Return what the device did, by which limit its offline event was due, and how long ago."""
        tick_s, grace_s, slack_s = self.deadlines
        text = f"{session.device.uid}: last packet {now - session.last_packet().start:.3f} s ago"
        limit = f"tick {tick_s:g} + slack {slack_s:g} s"
        if session.logout:
            text += f", logout {now - session.logout.start:.3f} s ago"
            limit = f"slack {slack_s:g} s"
        elif session.closed and not session.device.may_have_longer_grace:
            text += f", connection closed {now - session.closed.start:.3f} s ago"
            limit = f"grace {grace_s:g} (or what was left of T) + {limit}"
        else:
            limit = f"T {session.idle_timeout:g} + {limit}"
        return f"{text}; the event was due within {limit}, that is {overdue_s:.3f} s ago"

    def judge_event(self, entry_id: str, fields: Mapping[str, str], arrived: float) -> list[DeviceFinding]:
        """Judge an entry of a stream, read at `arrived`; entries of others' devices are ignored."""
        if fields.get("type") == "gap":
            return [DeviceFinding("gap", None, "a gap in the stream", f"{fields.get('dropped')} transitions")]
        device = self._devices.get(fields.get("uid", ""))
        if device is None:
            return []
        self._has_events = True
        if fields["type"] == "online":
            return [self._judge_online(device, entry_id, fields, arrived)]
        if fields["type"] == "offline":
            return self._judge_offline(device, entry_id, fields, arrived)
        return []

    def _judge_online(
        self, device: JudgedDevice, entry_id: str, fields: Mapping[str, str], arrived: float
    ) -> DeviceFinding:
        was_online, device.online_id = device.online_id, entry_id
        session = device.find_session(fields["session"])
        if was_online is not None:
            return DeviceFinding("online", None, "two online events in a row", f"{device.uid} {entry_id}")
        if session is None:
            return DeviceFinding("online", None, "online without a login", f"{device.uid} {entry_id}")
        return DeviceFinding("online", arrived - session.login.start)

    def _judge_offline(
        self, device: JudgedDevice, entry_id: str, fields: Mapping[str, str], arrived: float
    ) -> list[DeviceFinding]:
        name = f"offline {fields['reason']}"
        was_online, device.online_id = device.online_id, None
        session = device.find_session(fields["session"])
        if was_online is None:
            broken: str | None = "two offline events in a row"
        elif was_online != fields.get("since_id"):
            broken = "since_id names another online event"
        elif session is None:
            broken = "offline of a session that is not the device's"
        else:
            broken = None
        if session is None or session.answered_at is None:
            return [DeviceFinding(name, None, broken, f"{device.uid} {entry_id}")]
        due = self._due_of(session, fields)
        if broken is None and due is not None and arrived > due:
            broken = "offline event too late"
        session.is_ended, session.offline_due = True, None
        return self._judge_session_end(session, name, fields, arrived, broken)

    def _due_of(self, session: JudgedSession, fields: Mapping[str, str]) -> float | None:
        """Return when this offline event must have come, now that it says how long the grace was."""
        device, due = session.device, session.offline_due
        if due is None or session.closed is None or int(fields["code"]) != Code.CLOSED:
            return due
        if device.may_have_longer_grace:
            grace_ends_at = _grace_ends_at(session, session.closed.end, self._grace_of(fields))
            due = min(due, grace_ends_at + self.deadlines.tick_s + self.deadlines.slack_s)
        return due

    def _grace_of(self, fields: Mapping[str, str]) -> float:
        """Return the grace of an ended session in seconds; the event names one that was extended."""
        return int(fields.get("grace_ms") or 0) / 1000 or self.deadlines.grace_s

    def _judge_session_end(
        self, session: JudgedSession, name: str, fields: Mapping[str, str], arrived: float, broken: str | None
    ) -> list[DeviceFinding]:
        earliest, latest = self.clock.bounds(int(fields["at_ms"]))
        last_packet = session.last_packet(earliest - RACE_S)
        wrong, due = self._earliest_end(fields, session, last_packet, latest)
        if broken is None and _came_back(session, earliest):
            broken = "offline although the device had come back"
        elif broken is None:
            broken = wrong
        detail = (
            f"{session.device.uid} {session.id}: last packet {arrived - last_packet.start:.3f} s before "
            f"the event was read, {latest - last_packet.start:.3f} s before the decision"
        )
        findings = [DeviceFinding(name, arrived - last_packet.start, broken, detail)]
        if not broken:
            findings.append(DeviceFinding(f"{name}, beyond what was due", arrived - due))
        return findings

    def _earliest_end(
        self, fields: Mapping[str, str], session: JudgedSession, last_packet: Sent, decided: float
    ) -> tuple[str | None, float]:
        """Return what is wrong with an end for that reason, or None, and from when on it is right."""
        match int(fields["code"]):
            case Code.IDLE_TIMEOUT:
                due = last_packet.start + session.idle_timeout
                early = "too early" if session.is_silent else "for a live device"
            case Code.CLOSED if session.closed and session.closed.start <= decided:
                due = min(
                    session.closed.start + self._grace_of(fields), last_packet.start + session.idle_timeout
                )
                early = "within the grace"
            case Code.LOGOUT if session.logout:
                due, early = session.logout.start, "too early"
            case _:
                return "offline for a reason that the device did not give", decided
        return (f"offline event {early}" if decided < due else None), due


def _grace_ends_at(session: JudgedSession, closed: float, grace_s: float) -> float:
    return min(closed + grace_s, session.last_packet().start + session.idle_timeout)


def _overtaken_after(session: JudgedSession) -> float | None:
    """Return the seconds from a logout to a login that may have overtaken it, or None."""
    successor = session.successor
    if session.logout is None or successor is None or _same_node(session, successor):
        return None
    # The user must have stayed online until now, or until a later session ended, whose event counts for both.
    if session.device.online_id is None and not any(each.is_ended for each in _later(session)):
        return None
    pause_s = successor.login.start - session.logout.start
    return pause_s if pause_s <= OVERTAKEN_S else None


def _later(session: JudgedSession) -> Iterator[JudgedSession]:
    """Yield the device's later sessions; its `sessions` may have lost this one."""
    while (successor := session.successor) is not None:
        yield successor
        session = successor


def _same_node(first: JudgedSession, second: JudgedSession) -> bool:
    """Whether one worker answered both logins: the prefix of a session's id identifies its node."""
    if first.id is None or second.id is None:
        return False
    return first.id.rpartition("-")[0] == second.id.rpartition("-")[0]


def _came_back(session: JudgedSession, decided: float) -> bool:
    """Whether a later login of the device had surely been answered when the event was decided."""
    return any(later.answered_at is not None and later.answered_at <= decided for later in _later(session))
