"""What clients truly did and what was truly done to the nodes: the facts that events are judged by.

Moments are monotonic seconds of this process; infinity: it has not happened.
"""

import math
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from loadtest.events import StreamEvent
from tests.system.chaos.plan import ChaosFaultKind, Place

PACKETS_KEPT = 48  # of a login; at a keepalive each 0.4 T as much as 19 T, far above any lag of an event
LOGINS_KEPT = 16  # of a user
RUNNING = math.inf
PROPAGATION_S = 1.0  # until Redis knows what a client did, on a busy machine


@dataclass(slots=True, eq=False)
class DeviceLogin:
    """One login, granted or not, and what followed it."""

    place: int  # the node that it was sent to
    is_proxied: bool  # whether by way of a proxy
    sent_at: float  # right before it was sent
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

    def record_packet(self, at: float) -> None:
        self.packets.append(at)
        if len(self.packets) >= 2 * PACKETS_KEPT:
            del self.packets[:PACKETS_KEPT]

    @property
    def gone_at(self) -> float:
        """From when on the client is not connected by this login."""
        return min(self.silent_at, self.logout_at, self.closed_at, self.lost_at)


class User:
    """One client, and its latest logins in order."""

    __slots__ = ("logins", "uid")

    def __init__(self, uid: str) -> None:
        self.uid = uid
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


StreamItem = StreamEvent | SavedState | DataLoss
"""What the streams say, in the order in which Redis took it, and what Redis forgot in between."""
