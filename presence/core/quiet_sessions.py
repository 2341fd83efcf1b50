"""Sessions whose clients are in the background, and want changes of watched users with their next packet.

The engine keeps `sessions`, as clients request, and `presence.watching` keeps `holding`. The next packet of a
session in `holding` releases its changes. A batch of keepalives is compared with `holding` as a whole, so
while no changes are held, a keepalive costs nothing more.

Tests: `tests/core/test_quiet_sessions.py`.
"""

from dataclasses import dataclass, field

from presence.core.registry import Session


@dataclass(slots=True)
class QuietSessions:
    """Connected sessions that are quiet, and those for which changes are held."""

    sessions: set[Session] = field(default_factory=set)
    holding: set[Session] = field(default_factory=set)  # may be quiet no longer, until its packet was handled

    def set(self, session: Session, *, is_quiet: bool) -> None:
        """Note whether a session is quiet; one without a connection is not."""
        if is_quiet and session.transport is not None:
            self.sessions.add(session)
        else:
            self.sessions.discard(session)

    def disconnected(self, session: Session) -> None:
        self.sessions.discard(session)
        self.holding.discard(session)
