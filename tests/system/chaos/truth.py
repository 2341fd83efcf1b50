"""What clients truly did and what was truly done to the nodes: the facts that events are judged by.

Moments are monotonic seconds of this process; infinity: it has not happened.
"""

import math
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from loadtest.stream_events import StreamEvent
from tests.system.chaos.plan import ChaosFaultKind, Place
from tests.system.chaos.rooms import RoomEntry

PACKETS_KEPT = 48  # of a login; at a keepalive each 0.4 T as much as 19 T, far above any lag of an event
LOGINS_KEPT = 16  # of a user
RUNNING = math.inf
PROPAGATION_S = 1.0  # until Redis knows what a client did, on a busy machine


@dataclass(slots=True, eq=False)
class Wish:
    """A request of a client: another idle time-out, or another status."""

    id: int  # of its packet
    sent_at: float
    idle_timeout: float = 0.0  # 0.0: unchanged
    status: str = ""  # "": unchanged
    until: float = math.inf  # when the status ends, by the clock of this process
    answered_at: float = math.inf


@dataclass(slots=True, eq=False)
class DeviceLogin:
    """One login, granted or not, and what followed it."""

    place: int  # the node that it was sent to
    is_proxied: bool  # whether by way of a proxy
    sent_at: float  # right before it was sent
    is_websocket: bool = False
    granted_at: float = math.inf  # when its answer was read
    session: str = ""  # as the answer names it; of a login whose answer was lost, as an event does
    # Right before each packet was sent, the latest ones
    packets: "array[float]" = field(default_factory=lambda: array("d"))
    silent_at: float = math.inf  # from when on the client sends nothing more
    abandoned_at: float = math.inf  # when the client left the connection half open, to log in elsewhere
    logout_at: float = math.inf  # right before the logout was sent
    closed_at: float = math.inf  # right before the client closed the connection
    lost_at: float = math.inf  # when the client saw that the connection had ended
    code: int = 0  # what the server had said then; 0: nothing
    banned_at: float = math.inf  # right before an operator banned the user
    wishes: list[Wish] = field(default_factory=list)  # in order

    def record_packet(self, at: float) -> None:
        self.packets.append(at)
        if len(self.packets) >= 2 * PACKETS_KEPT:
            del self.packets[:PACKETS_KEPT]

    def idle_timeouts(self, usual: float, at: float) -> tuple[float, float]:
        """Return the shortest and the longest idle time-out that may be in force at a moment."""
        sure, open_ones = usual, []
        for each in [*self.wishes]:  # its own thread goes on
            if each.idle_timeout and each.answered_at <= at:
                sure = each.idle_timeout
            elif each.idle_timeout and each.sent_at <= at:
                open_ones.append(each.idle_timeout)
        return min([sure, *open_ones]), max([sure, *open_ones])

    def status_at(self, at: float, tolerance_s: float) -> str | None:
        """Return the status that the session must show at a moment; None: it may be in between."""
        shown = lasting = "online"
        until = math.inf
        for each in [*self.wishes]:
            if not each.status or each.sent_at > at:
                continue
            if each.answered_at + tolerance_s > at:
                return None
            shown, until = each.status, each.until
            lasting = shown if until == math.inf else lasting
        if abs(until - at) < tolerance_s:
            return None
        return shown if at < until else lasting

    @property
    def gone_at(self) -> float:
        """From when on the client is not connected by this login."""
        return min(self.silent_at, self.logout_at, self.closed_at, self.lost_at)


class UserBan(NamedTuple):
    """A ban of a user by an operator."""

    known_at: float  # when Redis had it, and the nodes had been told
    ends_at: float


class User:
    """One client, its latest logins in order, and its bans."""

    __slots__ = ("banned_until", "bans", "logins", "uid")

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.banned_until = -math.inf  # at the latest
        self.bans: deque[UserBan] = deque(maxlen=LOGINS_KEPT)
        self.logins: deque[DeviceLogin] = deque(maxlen=LOGINS_KEPT)

    def find_login(self, session: str, written_at: float) -> DeviceLogin | None:
        """Return the login that an event names.

        An event may precede the answer, and the answer may be lost: a new name belongs to the oldest login
        that it may belong to.
        """
        named = [login for login in [*self.logins] if login.session == session]  # its thread goes on
        if named:  # an answer that came late knows better whose it is
            return max(named, key=lambda login: login.granted_at < math.inf)
        for login in [*self.logins]:
            if not login.session and login.sent_at <= written_at:
                login.session = session
                return login
        return None

    def is_changing(self, now: float, silence_s: float, loss_s: float) -> bool:
        """Whether Redis may not know a user's state yet: the user has just come, gone or fallen silent.

        Args:
            silence_s: until a silence is reported.
            loss_s: until the end of a connection is.
        """
        for login in [*self.logins]:
            moments = [login.sent_at, login.logout_at] + (
                [login.granted_at] if login.granted_at < math.inf else []
            )
            if any(now - PROPAGATION_S < moment <= now for moment in moments):
                return True
            silent_at = min(login.silent_at, login.abandoned_at)
            if silent_at <= now < silent_at + silence_s and login.logout_at == math.inf:
                return True
            lost_at = min(login.closed_at, login.lost_at)
            if lost_at <= now < lost_at + loss_s:
                return True
        return False


@dataclass(slots=True, eq=False)
class Trouble:
    """A fault while it was at work."""

    kind: ChaosFaultKind
    place: int  # of whom; see `tests.system.chaos.plan.ChaosFault`
    begin: float
    end: float = RUNNING

    @property
    def scope(self) -> Place:
        """What the fault was done to; a rolling restart is recorded for each node by itself."""
        scope = self.kind.value.place
        return Place.NODE if scope is Place.ALL_NODES else scope


NODE_DEATHS = frozenset({ChaosFaultKind.KILL, ChaosFaultKind.ROLLING, ChaosFaultKind.SWEEPER})
ROLLBACKS = frozenset(
    {
        *(ChaosFaultKind.REDIS_BACK, ChaosFaultKind.FAILOVER, ChaosFaultKind.FAILOVER_KILL),
        ChaosFaultKind.SENTINEL_FAILOVER,
    }
)
DATA_LOSSES = ROLLBACKS | {ChaosFaultKind.REDIS_EMPTY, ChaosFaultKind.FLUSH}
OUTAGES = frozenset(
    {
        *(
            ChaosFaultKind.REDIS_KILL,
            ChaosFaultKind.REDIS_STOP,
            ChaosFaultKind.REDIS_EMPTY,
            ChaosFaultKind.MEMORY,
            *ROLLBACKS,
        ),
        *(ChaosFaultKind.PRIMARY_KILL, ChaosFaultKind.PRIMARY_STOP),
        *(ChaosFaultKind.SENTINEL_KILL, ChaosFaultKind.SENTINEL_STOP),
    }
)


class SavedState(NamedTuple):
    """Redis' state of this moment is saved under a number."""

    number: int
    written_at: float


class DataLoss(NamedTuple):
    """Redis went back to the saved state with that number; None: it is empty."""

    number: int | None
    written_at: float


StreamItem = StreamEvent | RoomEntry | SavedState | DataLoss
"""What the streams say, in the order in which Redis took it, and what Redis forgot in between."""
