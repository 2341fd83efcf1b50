"""Signals for a process without an event loop."""

import selectors
import signal
import socket
from contextlib import suppress
from typing import NamedTuple

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGCHLD)


class Taken(NamedTuple):
    """How many orders of each kind came."""

    stops: int
    renewals: int
    reloads: int


class Wakeups:
    """Signals as something to select on, for the length of a ``with`` block.

    SIGTERM and SIGINT are orders to stop, SIGUSR2 one to renew the workers, SIGHUP one to read files again;
    SIGCHLD only wakes.

    Args:
        selector: where the signals are seen; the key's data is None.
        reloads: whether SIGHUP is an order; else it does what it did.
    """

    def __init__(self, selector: selectors.BaseSelector, *, reloads: bool = False) -> None:
        self._selector = selector
        self._handled = (*HANDLED, signal.SIGHUP) if reloads else HANDLED
        self._before: dict[int, object] = {}
        self._stops = self._renewals = self._reloads = 0

    def __enter__(self) -> "Wakeups":
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._selector.register(self._reader, selectors.EVENT_READ)
        for number in self._handled:
            self._before[number] = signal.signal(number, self._note)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *exc_info: object) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # what signal.signal returned
        self._selector.unregister(self._reader)
        self._reader.close()
        self._writer.close()

    def _note(self, number: int, _frame: object) -> None:
        if number == signal.SIGUSR2:
            self._renewals += 1
        elif number == signal.SIGHUP:
            self._reloads += 1
        elif number != signal.SIGCHLD:
            self._stops += 1

    def take_orders(self) -> Taken:
        """Return the orders that came since the last call."""
        with suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass
        taken = Taken(self._stops, self._renewals, self._reloads)
        self._stops = self._renewals = self._reloads = 0
        return taken
