"""Compares each event with what the device that it names did, and reports missing events.

No I/O and no clock: the load test reports what its devices did and which entries it read from the stream.

What is judged, for each device (T is the session's own idle time-out):

- online and offline alternate, and an offline event names the online event that it ends;
- no offline event for silence before T after the last packet, none for a lost connection within its grace,
  none for a device that came back in time, none for a reason that the device did not give;
- an offline event within T + tick + slack of the last packet of a device that fell silent, within
  grace + tick + slack of a closed connection, within the slack of a logout; an online event within the
  slack of a login. For a logout and a login on another node within `OVERTAKEN_S` there may be neither.

In case of doubt the server is right: what lies within the bounds of the clocks is never called broken.

Times are monotonic seconds of this process. A packet is known by the moments right before and right after it
was handed to the kernel; on one machine the server could read it from some moment in between.
"""

import heapq
import math
from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from presence.protocol import Code

# A packet that comes while the server is already deciding about a slice of silent sessions is in a race.
RACE_S = 0.1

# A login so soon after the device's logout may be the first of the two in Redis, if it is on another node.
# Then it replaces the session, and neither has an event. Nothing beyond that is excused.
OVERTAKEN_S = 0.25
SENT_KEPT = 64  # packets remembered of a session: 25 idle time-outs of beats, far above any lag of an event
_KEPT = 2 * SENT_KEPT  # numbers in the array of them
SESSIONS_KEPT = 8  # of a device: its events lag behind by one or two
CLOCK_DRIFT = 1e-4  # seconds a second; twice what two bad quartzes are apart


class Sent(NamedTuple):
    """When something was done on a connection: the moments before and after the call."""

    begun: float
    done: float


@dataclass(slots=True, eq=False)
class JudgedSession:
    """One login and what followed it."""

    device: "JudgedDevice"
    login: Sent  # when the login was sent
    # T of this session, seconds; as the server dictates it once it has answered
    idle_timeout: float = math.inf
    id: str | None = None  # the session's name in events; None until the server has told
    answered_at: float | None = None  # when the login's ok was read
    silent: bool = False  # whether the device means to send nothing for now
    # When the device did so
    logout: Sent | None = None
    closed: Sent | None = None
    ended: bool = False  # whether an offline event was seen, or was missed and reported
    end_by: float | None = None  # when an offline event must have come; None: none has to
    # Of its last packets, two numbers each; the garbage collector need not look at them
    times: "array[float]" = field(init=False)

    def __post_init__(self) -> None:
        self.times = array("d", self.login)

    def sent(self, packet: Sent) -> None:
        """Remember one packet more."""
        times = self.times
        times.extend(packet)
        if len(times) >= 2 * _KEPT:
            del times[:_KEPT]

    def last_sent(self, by: float = math.inf) -> Sent:
        """Return the last packet that was surely readable at `by`; the oldest that is known if none was."""
        times = self.times
        for at in range(len(times) - 2, -1, -2):
            if times[at + 1] <= by:
                return Sent(times[at], times[at + 1])
        return Sent(times[0], times[1])

    @property
    def lives(self) -> bool:
        """Whether the device, for all that it did, should be online by this session."""
        return not (self.silent or self.ended or self.logout or self.closed)


class JudgedDevice:
    """One user with one device.

    Attributes:
        uid: its name.
        sessions: its last logins, the newest last.
        online_id: entry id of the online event of the present period; None while the stream says offline.
    """

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.sessions: deque[JudgedSession] = deque(maxlen=SESSIONS_KEPT)
        self.online_id: str | None = None

    def session(self, session_id: str) -> JudgedSession | None:
        """Return the session that an event names.

        An event may be faster than the login's answer: a name that is new is then that of the newest login
        without one.
        """
        for session in reversed(self.sessions):
            if session.id == session_id:
                return session
        for session in reversed(self.sessions):
            if session.id is None:
                session.id = session_id
                return session
        return None


class ServerClock:
    """The server's Unix milliseconds in this process's monotonic seconds, between two bounds.

    Each login's answer tells the server's time at a moment between the request and the answer, so it bounds
    the difference of the clocks from both sides; the bounds of many answers are intersected, and widened by
    what clocks may drift. Without any answer yet the bounds are infinite.
    """

    def __init__(self) -> None:
        self._low = -math.inf
        self._high = math.inf
        self._at = 0.0

    def sample(self, asked: float, answered: float, server_ms: int) -> None:
        """Take the server's time, told in an answer to what was sent at `asked` and read at `answered`."""
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
    """What the server is set to, and what is allowed on top; all in seconds."""

    tick_s: float  # the server's tick
    grace_s: float  # the server's disconnect grace
    slack_s: float  # for the way through Redis, and for what the machines under load are late


class DeviceFinding(NamedTuple):
    """One thing to report."""

    name: str  # what was measured
    seconds: float | None = None  # the measure; None where there is none
    broken: str | None = None  # the promise that was broken, always in the same words; None if all is well
    detail: str = ""  # the numbers of this very case


class DeviceJudge:
    """Facts in, events in, findings out."""

    def __init__(self, promise: EventDeadlines) -> None:
        self.clock = ServerClock()
        self._promise = promise
        self._devices: dict[str, JudgedDevice] = {}
        self._due: list[tuple[float, int, JudgedSession]] = []
        self._sequence = 0
        self._closed = False

    # What a device did

    def logged_in(self, uid: str, login: Sent) -> JudgedSession:
        """A login was sent; whatever the device's older sessions were due to, it has come back from."""
        device = self._devices.setdefault(uid, JudgedDevice(uid))
        for old in device.sessions:
            if old.end_by is not None and login.begun < old.end_by and not old.logout:
                old.end_by = None
        session = JudgedSession(device, login)
        device.sessions.append(session)
        return session

    def answered(
        self, session: JudgedSession, at: float, session_id: str, idle_timeout: float, server_ms: int
    ) -> None:
        """The server's ok to the login was read at `at`."""
        session.answered_at = at
        session.id = session_id
        session.idle_timeout = idle_timeout
        self.clock.sample(session.login.begun, at, server_ms)
        self._look_at(at + self._promise.slack_s, session)

    def sent(self, session: JudgedSession, packet: Sent) -> None:
        """A whole packet was sent; with it a silence is over."""
        session.sent(packet)
        session.silent = False
        if session.end_by is not None and packet.begun < session.end_by:
            session.end_by = None

    def silent(self, session: JudgedSession) -> None:
        """The device sends nothing more for now."""
        session.silent = True
        tail_s = session.idle_timeout + self._promise.tick_s
        self._expect_end(session, session.last_sent().done + tail_s)

    def logs_out(self, session: JudgedSession, logout: Sent) -> None:
        """A logout was sent; its event may be read before its answer."""
        session.logout = logout

    def logged_out(self, session: JudgedSession) -> None:
        """The server has confirmed the logout."""
        if session.logout is not None:
            self._expect_end(session, session.logout.done)

    def closed(self, session: JudgedSession, closed: Sent) -> None:
        """The device closed its connection without a logout."""
        session.closed = closed
        if session.answered_at is not None:
            self._expect_end(session, self._grace_ends(session, closed.done) + self._promise.tick_s)

    def lost(self, session: JudgedSession, at: float) -> None:
        """The server, or the path to it, is gone: no event is due."""
        session.closed = Sent(session.last_sent().begun, at)
        session.end_by = None

    def close(self) -> int:
        """The devices are being stopped: nothing more is due; return how many offline events still were."""
        still_due = len({session for _, _, session in self._due if session.end_by is not None})
        self._closed = True
        self._due = []
        return still_due

    def _grace_ends(self, session: JudgedSession, closed: float) -> float:
        return min(closed + self._promise.grace_s, session.last_sent().begun + session.idle_timeout)

    def _expect_end(self, session: JudgedSession, decided_by: float) -> None:
        if session.ended or session.device.sessions[-1] is not session:
            return
        end_by = decided_by + self._promise.slack_s
        session.end_by = end_by if session.end_by is None else min(end_by, session.end_by)
        self._look_at(session.end_by, session)

    def _look_at(self, deadline: float, session: JudgedSession) -> None:
        if not self._closed:
            self._sequence += 1
            heapq.heappush(self._due, (deadline, self._sequence, session))

    # What the stream says

    def overdue(self, now: float) -> list[DeviceFinding]:
        """Return what should have come by `now` and has not; all events read before must have been told."""
        findings = []
        while self._due and self._due[0][0] <= now:
            deadline, _, session = heapq.heappop(self._due)
            device = session.device
            if session.end_by == deadline and not session.ended:
                session.end_by, session.ended = None, True  # told once
                reason = "logout" if session.logout else "closed" if session.closed else "idle_timeout"
                since = now - session.last_sent().begun
                detail = f"{device.uid} sent its last packet {since:.3f} s ago"
                if (pause_s := _overtaken_after(session)) is not None:
                    findings.append(DeviceFinding("logout overtaken by a login", pause_s))
                else:
                    findings.append(
                        DeviceFinding(f"offline {reason}", None, "no offline event in time", detail)
                    )
            is_login = session.answered_at is not None and (
                deadline == session.answered_at + self._promise.slack_s
            )
            if is_login and device.online_id is None and device.sessions[-1] is session and session.lives:
                findings.append(DeviceFinding("online", None, "no online event in time", device.uid))
        return findings

    def event(self, entry_id: str, fields: Mapping[str, str], arrived: float) -> list[DeviceFinding]:
        """Take one entry of a stream, read at `arrived`; entries of others' devices are passed over."""
        if fields.get("type") == "gap":
            return [DeviceFinding("gap", None, "a gap in the stream", f"{fields.get('dropped')} transitions")]
        device = self._devices.get(fields.get("uid", ""))
        if device is None:
            return []
        if fields["type"] == "online":
            return [self._online(device, entry_id, fields, arrived)]
        if fields["type"] == "offline":
            return self._offline(device, entry_id, fields, arrived)
        return []

    def _online(
        self, device: JudgedDevice, entry_id: str, fields: Mapping[str, str], arrived: float
    ) -> DeviceFinding:
        was_online, device.online_id = device.online_id, entry_id
        session = device.session(fields["session"])
        if was_online is not None:
            return DeviceFinding("online", None, "two online events in a row", f"{device.uid} {entry_id}")
        if session is None:
            return DeviceFinding("online", None, "online without a login", f"{device.uid} {entry_id}")
        return DeviceFinding("online", arrived - session.login.begun)

    def _offline(
        self, device: JudgedDevice, entry_id: str, fields: Mapping[str, str], arrived: float
    ) -> list[DeviceFinding]:
        name = f"offline {fields['reason']}"
        was_online, device.online_id = device.online_id, None
        session = device.session(fields["session"])
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
        if broken is None and session.end_by is not None and arrived > session.end_by:
            broken = "offline event too late"
        session.ended, session.end_by = True, None
        return self._offline_of(session, name, fields, arrived, broken)

    def _offline_of(
        self, session: JudgedSession, name: str, fields: Mapping[str, str], arrived: float, broken: str | None
    ) -> list[DeviceFinding]:
        earliest, latest = self.clock.bounds(int(fields["at_ms"]))
        heard = session.last_sent(earliest - RACE_S)
        wrong, due = self._allowed_from(int(fields["code"]), session, heard, latest)
        if broken is None and _came_back(session, earliest):
            broken = "offline although the device had come back"
        elif broken is None:
            broken = wrong
        detail = (
            f"{session.device.uid} {session.id}: last packet {arrived - heard.begun:.3f} s before the event "
            f"was read, {latest - heard.begun:.3f} s before the decision"
        )
        findings = [DeviceFinding(name, arrived - heard.begun, broken, detail)]
        if not broken:
            findings.append(DeviceFinding(f"{name}, beyond what was due", arrived - due))
        return findings

    def _allowed_from(
        self, code: int, session: JudgedSession, heard: Sent, decided: float
    ) -> tuple[str | None, float]:
        """Return what is wrong with an end for that reason, if anything is, and from when on it is right."""
        match code:
            case Code.IDLE_TIMEOUT:
                due = heard.begun + session.idle_timeout
                early = "too early" if session.silent else "for a device that beats"
            case Code.CLOSED if session.closed and session.closed.begun <= decided:
                due = min(session.closed.begun + self._promise.grace_s, heard.begun + session.idle_timeout)
                early = "within the grace"
            case Code.LOGOUT if session.logout:
                due, early = session.logout.begun, "too early"
            case _:
                return "offline for a reason that the device did not give", decided
        return (f"offline event {early}" if decided < due else None), due


def _overtaken_after(session: JudgedSession) -> float | None:
    """Return the seconds from a logout to a login that may have gone before it; None: there is none."""
    sessions = list(session.device.sessions)
    later = sessions[sessions.index(session) + 1 :]
    if session.logout is None or not later or _same_node(session, later[0]):
        return None
    # The user must have stayed online until now, or until a later session ended, whose event counts for both.
    if session.device.online_id is None and not any(each.ended for each in later):
        return None
    pause_s = later[0].login.begun - session.logout.begun
    return pause_s if pause_s <= OVERTAKEN_S else None


def _same_node(first: JudgedSession, second: JudgedSession) -> bool:
    """Whether one worker answered both logins: the prefix of a session's id identifies its node."""
    if first.id is None or second.id is None:
        return False
    return first.id.rpartition("-")[0] == second.id.rpartition("-")[0]


def _came_back(session: JudgedSession, decided: float) -> bool:
    """Whether a later login of the device had surely been answered when the event was decided."""
    sessions = session.device.sessions
    return any(
        later.answered_at is not None and later.answered_at <= decided
        for later in list(sessions)[list(sessions).index(session) + 1 :]
    )
