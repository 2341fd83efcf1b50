"""Which service answers a request of a client."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from presence.common.faults import Faults
from presence.core.registry import Session
from presence.core.service_requests import ConfirmationRequest, MessageRequest, Request
from presence.watching.watch_service import Watching


@dataclass(eq=False, repr=False)
class RequestRouter:
    """The `RequestHandler` of the engine: hands each request to the service that answers it."""

    watching: Watching  # answers queries, watches and unwatches
    route_message: Callable[[Session, MessageRequest], None]
    confirm_messages: Callable[[Session, list[int]], None]  # by their numbers
    faults: Faults  # contains errors where there is no request that could be refused

    def handle(self, session: Session, request: Request) -> None:
        if isinstance(request, MessageRequest):
            self.route_message(session, request)
        elif isinstance(request, ConfirmationRequest):
            self.confirm_messages(session, request.numbers)
        else:
            self.watching.take(session, request)

    def all_sent(self, session: Session) -> None:
        with self.faults.contained("push", partial(self.faults.disconnect, session)):
            self.watching.all_sent(session)

    def release_held(self, session: Session) -> None:
        self.watching.release_held(session)

    def sight_changed(self, session: Session) -> None:
        if session in self.watching.askers:
            with self.faults.contained("watch", partial(self.faults.disconnect, session)):
                self.watching.sight_changed(session)

    def session_disconnected(self, session: Session) -> None:
        if session in self.watching.askers:
            with self.faults.contained("watch"):
                self.watching.left(session)
