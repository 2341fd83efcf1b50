"""Where all requests of clients come in, and who serves them."""

from typing import Protocol

from presence.registry import Session
from presence.requests import Message, Request
from presence.watching.service import Watching


class Courier(Protocol):
    """Who hands on messages."""

    def take(self, session: Session, message: Message) -> None:
        """See `presence.requests.Desk`."""


class FrontDesk:
    """See `presence.requests.Desk`.

    Args:
        watching: serves queries, watches and unwatches.
        courier: serves messages.
    """

    def __init__(self, watching: Watching, courier: Courier) -> None:
        self._watching = watching
        self._courier = courier

    def take(self, session: Session, request: Request) -> None:
        """See `presence.requests.Desk`."""
        if isinstance(request, Message):
            self._courier.take(session, request)
        else:
            self._watching.take(session, request)

    def drained(self, session: Session) -> None:
        """See `presence.requests.Desk`."""
        self._watching.drained(session)

    def left(self, session: Session) -> None:
        """See `presence.requests.Desk`."""
        self._watching.left(session)
