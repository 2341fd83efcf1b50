"""A desk that notes what it is asked, and answers with what a test gives it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from presence.core.registry import Session
from presence.core.service_requests import MessageRequest, Request, send_error, send_ok
from presence.protocol import Code


@dataclass
class NotingDesk:
    taken: list[tuple[Session, Request]] = field(default_factory=list)
    drains: list[Session] = field(default_factory=list)  # that had unsent bytes
    releases: list[Session] = field(default_factory=list)  # quiet ones whose client has sent a packet
    sights: list[Session] = field(default_factory=list)  # who may see other users than before
    gone: list[Session] = field(default_factory=list)  # whose connection is gone
    answer: Callable[[Session, Request], object] = lambda session, request: None  # called with each request
    refill: Callable[[Session], object] = lambda session: None  # with each that has no unsent bytes any more

    def handle(self, session: Session, request: Request) -> None:
        self.taken.append((session, request))
        self.answer(session, request)

    def all_sent(self, session: Session) -> None:
        self.drains.append(session)
        self.refill(session)

    def release_held(self, session: Session) -> None:
        self.releases.append(session)

    def sight_changed(self, session: Session) -> None:
        self.sights.append(session)

    def session_disconnected(self, session: Session) -> None:
        self.gone.append(session)

    @property
    def requests(self) -> list[Request]:
        return [request for _, request in self.taken]


def nobody_is_there(session: Session, request: Request) -> None:
    """Answer as if no other user were online."""
    if isinstance(request, MessageRequest):
        send_error(session, request.id, Code.RECIPIENT_OFFLINE, "the recipient has no session")
    else:
        send_ok(session, request.id, {})
