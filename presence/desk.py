"""Where all requests of clients come in, and who serves them."""

from collections.abc import Callable
from functools import partial

from presence.faults import Faults
from presence.registry import Session
from presence.requests import Message, Request
from presence.watching.service import Watching


class FrontDesk:
    """See `presence.requests.Desk`.

    Args:
        watching: serves queries, watches and unwatches.
        carry: serves messages.
        faults: contains mistakes where no request is at hand that could be refused.
    """

    def __init__(self, watching: Watching, carry: Callable[[Session, Message], None], faults: Faults) -> None:
        self._watching = watching
        self._faults = faults
        self._carry = carry

    def take(self, session: Session, request: Request) -> None:
        """See `presence.requests.Desk`."""
        if isinstance(request, Message):
            self._carry(session, request)
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
