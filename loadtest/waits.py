"""How thousands of greenlets wait for their sockets and their moments, by as little as gevent allows.

A device has one watcher for the life of its connection, and no timer: moments stand in one heap, which one
timer of the process serves. Those that come within `GATHER_S` are served together, for waking costs more
than a beat. A greenlet is switched to from the hub's own callbacks and goes back to the hub when it waits.
"""

import heapq
import math
import time
from typing import Any

import gevent

GATHER_S = 0.02  # by so much a moment may be served late; a beat has seconds
READ, WRITE = 1, 2  # libev's flags


class Waits:
    """The moments of one process's devices."""

    def __init__(self) -> None:
        self._hub = gevent.get_hub()
        self._heap: list[tuple[float, int, Wait]] = []
        self._sequence = 0
        self._timer = self._hub.loop.timer(0.0)
        self._timer_due = math.inf

    def waiting(self, fd: int) -> "Wait":
        """Return how to wait for a socket."""
        return Wait(self, self._hub, fd)

    def add(self, until: float, wait: "Wait") -> None:
        """Have `wait` told of a moment."""
        self._sequence += 1
        heapq.heappush(self._heap, (until, self._sequence, wait))
        if until < self._timer_due - GATHER_S:
            self._run_timer(until)

    def _run_timer(self, until: float) -> None:
        wait_s = max(0.0, until - time.monotonic()) + GATHER_S
        self._timer_due = time.monotonic() + wait_s
        self._timer.stop()
        self._timer = self._hub.loop.timer(wait_s)
        self._timer.start(self._serve, update=True)

    def _serve(self) -> None:
        heap, self._timer_due = self._heap, -math.inf  # what is added meanwhile starts no timer
        now = time.monotonic()
        while heap and heap[0][0] <= now:
            until, _, wait = heapq.heappop(heap)
            wait.come(until)
        self._timer_due = math.inf
        if heap:
            self._run_timer(heap[0][0])


class Wait:
    """One socket, for which one greenlet at a time waits."""

    __slots__ = ("_fd", "_greenlet", "_hub", "_noted", "_reading", "_until", "_waits")

    def __init__(self, waits: Waits, hub: Any, fd: int) -> None:
        self._waits = waits
        self._hub = hub
        self._fd = fd
        self._greenlet: Any = None
        self._until = 0.0
        self._noted = 0.0  # the moment that stands in the heap for this socket
        self._reading = hub.loop.io(fd, READ)

    def readable(self, until: float) -> bool:
        """Wait until there is something to read; return whether there is."""
        if not self._reading.active:
            self._reading.start(self._ready, self._reading)
        return self._wait(until)

    def writable(self, until: float) -> bool:
        """Wait until the connection is open, or failed; return whether that is so."""
        writing = self._hub.loop.io(self._fd, WRITE)
        writing.start(self._ready, writing)
        try:
            return self._wait(until)
        finally:
            writing.stop()
            writing.close()

    def end(self) -> None:
        """The socket is being closed: nobody waits for it any more."""
        self._reading.stop()
        self._reading.close()

    def come(self, until: float) -> None:
        """A moment has come; it may be one for which nobody waits any more."""
        if until == self._noted:
            self._noted = 0.0
        if self._greenlet is not None and until == self._until:
            self._greenlet.switch(False)

    def _wait(self, until: float) -> bool:
        if until != self._noted and until < math.inf:
            self._noted = until
            self._waits.add(until, self)
        self._until = until
        self._greenlet = gevent.getcurrent()
        try:
            is_ready: bool = self._hub.switch()
        finally:
            self._greenlet = None
        return is_ready

    def _ready(self, watcher: Any) -> None:
        if self._greenlet is None:
            watcher.stop()  # it would call again and again, until somebody reads
        else:
            self._greenlet.switch(True)
