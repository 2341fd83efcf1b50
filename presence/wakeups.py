"""Signals for a process without an event loop."""

import selectors
import signal
import socket
from contextlib import suppress

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGCHLD)


class Wakeups:
    """Signals as something to select on, for the length of a ``with`` block.

    SIGTERM and SIGINT are orders to stop, SIGUSR2 one to renew the workers; SIGCHLD only wakes.

    Args:
        selector: where the signals are seen; the key's data is None.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._before: dict[int, object] = {}
        self._stops = 0
        self._renewals = 0

    def __enter__(self) -> "Wakeups":
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._selector.register(self._reader, selectors.EVENT_READ)
        for number in HANDLED:
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
        elif number != signal.SIGCHLD:
            self._stops += 1

    def take_orders(self) -> tuple[int, int]:
        """Return how many orders to stop, and to renew, came since the last call."""
        with suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass
        stops, renewals = self._stops, self._renewals
        self._stops = self._renewals = 0
        return stops, renewals
