"""Cancels calls at moments that no timer of an event loop is fine enough for."""

import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType

import trio


class Stages:
    """Wraps a call to tell how far it has got."""

    def __init__(self, blocking: Callable[[], object]) -> None:
        self.begun = threading.Event()
        self.has_ended = False
        self._blocking = blocking

    def __call__(self) -> object:
        """Make the call."""
        self.begun.set()
        try:
            return self._blocking()
        finally:
            self.has_ended = True


class Canceller:
    """A thread beside trio's, for a ``with`` block in trio's thread. One order at a time is carried out."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._orders: queue.SimpleQueue[tuple[trio.CancelScope, Stages | None, float] | None]
        self._orders = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Canceller":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._orders.put(None)
        self._thread.join()

    def order(self, scope: trio.CancelScope, call: Stages | None, wait_s: float) -> None:
        """Have a scope cancelled so long after a call has begun, or after now if that is None."""
        self._orders.put((scope, call, wait_s))

    def _run(self) -> None:
        while order := self._orders.get():
            scope, call, wait_s = order
            if call:
                call.begun.wait()
            time.sleep(wait_s)
            self._token.run_sync_soon(scope.cancel)
