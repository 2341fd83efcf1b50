"""What the clients truly did, session by session, in true time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.sockets import SimulatedConnection

Key = tuple[str, str]  # uid, device
LONG_AGO = -1e9


@dataclass(eq=False)
class TrueSession:
    id: str  # the session's id
    key: Key  # uid and device
    host: Host  # the process that granted it
    connection: SimulatedConnection  # which it was granted on
    arrived: float  # when the login became readable
    handled: float  # when it was granted
    idle_timeout: float  # seconds
    readable: float  # when its last packet became readable
    fin_at: float | None = None  # when its client's FIN became readable
    logout_at: float | None = None  # when its logout became readable
    ended_at: float | None = None  # when its process ended it
    end_code: int = 0  # and why

    def __post_init__(self) -> None:
        # The bounds of what Redis may know of its time-out, which changes arrive there later.
        self.shortest_timeout = self.longest_timeout = self.idle_timeout

    def set_idle_timeout(self, seconds: float) -> None:
        """Its client was granted another idle time-out."""
        self.idle_timeout = seconds
        self.shortest_timeout = min(self.shortest_timeout, seconds)
        self.longest_timeout = max(self.longest_timeout, seconds)

    def is_registered(self) -> bool:
        if not self.host.machine.is_alive:
            return False
        sessions = self.host.node.engine.registry
        uid, device = self.key
        session = sessions.get((uid, device) if device else uid)
        return session is not None and sessions.session_id(session) == self.id

    def is_alive(self, now: float) -> bool:
        """Whether its client is connected, and was received within its time-out by its node's clock."""
        if self.fin_at is not None or self.logout_at is not None or self.ended_at is not None:
            return False
        return (now - self.readable) * self.host.machine.clock.rate < self.idle_timeout


@dataclass
class TrueSessions:
    """Every session of the simulation."""

    by_id: dict[str, TrueSession] = field(default_factory=dict)
    by_user: dict[str, dict[str, list[TrueSession]]] = field(default_factory=dict)

    def add(self, life: TrueSession) -> None:
        self.by_id[life.id] = life
        uid, device = life.key
        self.by_user.setdefault(uid, {}).setdefault(device, []).append(life)

    def newest(self, uid: str) -> list[TrueSession]:
        """Return, for each device of a user, the session whose login arrived last."""
        devices = self.by_user.get(uid, {})
        return [max(lives, key=lambda life: life.arrived) for lives in devices.values()]
