"""What a device truly did: the facts that events are judged by.

Times are monotonic seconds of this process. A packet is known by the moments right before and right after
it was handed to the kernel; on one machine the server could read it from some moment in between.
"""

import math
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

SENT_KEPT = 64  # packets remembered of a session: 25 idle time-outs of beats, far above any lag of an event
_KEPT = 2 * SENT_KEPT  # numbers in the array of them
SESSIONS_KEPT = 8  # of a device: its events lag behind by one or two
CLOCK_DRIFT = 1e-4  # seconds a second; twice what two bad quartzes are apart


class Sent(NamedTuple):
    """When something was done on a connection: the moments before and after the call."""

    begun: float
    done: float


@dataclass(slots=True, eq=False)
class Session:
    """One login and what followed it.

    Attributes:
        login: when the login was sent.
        idle_timeout: T of this session, seconds; as the server dictates it once it has answered.
        id: the session's name in events; None until the server has told.
        answered_at: when the login's ok was read.
        silent: whether the device means to send nothing for now.
        logout, closed: when the device did so.
        ended: whether an offline event was seen, or was missed and reported.
        end_by: when an offline event must have come; None: none has to.
        times: of its last packets, two numbers each; the garbage collector need not look at them.
    """

    device: "Device"
    login: Sent
    idle_timeout: float = math.inf
    id: str | None = None
    answered_at: float | None = None
    silent: bool = False
    logout: Sent | None = None
    closed: Sent | None = None
    ended: bool = False
    end_by: float | None = None
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


class Device:
    """One user with one device.

    Attributes:
        uid: its name.
        sessions: its last logins, the newest last.
        online_id: entry id of the online event of the present period; None while the stream says offline.
    """

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.sessions: deque[Session] = deque(maxlen=SESSIONS_KEPT)
        self.online_id: str | None = None

    def session(self, session_id: str) -> Session | None:
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
