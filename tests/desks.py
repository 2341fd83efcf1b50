"""A desk that notes what it is asked, and answers with what a test gives it."""

from collections.abc import Callable

from presence.registry import Session
from presence.requests import Message, Request, grant, refuse
from protocol import Code


class NotingDesk:
    """Notes everything.

    Attributes:
        taken: the sessions and requests, in order.
        drains: sessions that had unsent bytes, in order.
        gone: sessions whose connection is gone, in order.
        answer: called with each request.
        refill: called with each session that has no unsent bytes any more.
    """

    def __init__(self) -> None:
        self.taken: list[tuple[Session, Request]] = []
        self.drains: list[Session] = []
        self.gone: list[Session] = []
        self.answer: Callable[[Session, Request], object] = lambda session, request: None
        self.refill: Callable[[Session], object] = lambda session: None

    def take(self, session: Session, request: Request) -> None:
        self.taken.append((session, request))
        self.answer(session, request)

    def drained(self, session: Session) -> None:
        self.drains.append(session)
        self.refill(session)

    def left(self, session: Session) -> None:
        self.gone.append(session)

    @property
    def requests(self) -> list[Request]:
        """What was asked, in order."""
        return [request for _, request in self.taken]


def nobody_is_there(session: Session, request: Request) -> None:
    """Answer as where no other user is online."""
    if isinstance(request, Message):
        refuse(session, request.id, Code.RECIPIENT_OFFLINE, "the recipient has no session")
    else:
        grant(session, request.id, {})
