"""Where all requests of clients come in, and who serves them."""

from functools import partial
from typing import Protocol

from presence.faults import Faults
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
        faults: contains mistakes where no request is at hand that could be refused.
    """

    def __init__(self, watching: Watching, courier: Courier, faults: Faults) -> None:
        self._watching = watching
        self._faults = faults
        self._courier = courier

    def take(self, session: Session, request: Request) -> None:
        """See `presence.requests.Desk`."""
        if isinstance(request, Message):
            self._courier.take(session, request)
        else:
            self._watching.take(session, request)

    def drained(self, session: Session) -> None:
        """See `presence.requests.Desk`."""
        with self._faults.contained("push", partial(self._faults.disconnect, session)):
            self._watching.drained(session)

    def left(self, session: Session) -> None:
        """See `presence.requests.Desk`."""
        with self._faults.contained("watch"):
            self._watching.left(session)
