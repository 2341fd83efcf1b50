"""Confirmations: which sessions certainly have a message, for senders that want to know; pure.

A session whose client confirms messages counts when the client has said so, and not before: a kernel takes
bytes for an app that is frozen. Any other session counts when the kernel at the other end has acknowledged
all bytes up to the end of the message. The kernel here is asked for that after 10 ms, 20 ms, 40 ms and so on,
and every second at last: so the answer is at most twice as late as the acknowledgement, and 30 s take some 35
calls of microseconds. Connections of which nothing is awaited cost nothing.

There is one wait for each session here that a message was handed to, and one for all sessions of other nodes,
which ends with their reports. When no wait of a message is left, `done` is called. Sessions beyond the bound
are unconfirmed immediately. O(log n) for a wait, where n is their number.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from presence.common.faults import Faults
from presence.core.registry import Session
from presence.messaging.message_bus import REPORT_TIME_S, Confirmed

MAX_WAITS: Final = 8192  # as many as messages that wait for Redis
MAX_LOOKS_PER_TURN: Final = 256  # some 5 us each
FIRST_PAUSE_S: Final = 0.01
MAX_PAUSE_S: Final = 1.0  # within it a lost connection is noticed

Done = Callable[[Confirmed], object]


@dataclass(slots=True)
class ConfirmationCounters:
    """Counters since the start, of sessions here."""

    by_app: int = 0
    by_kernel: int = 0
    unconfirmed: int = 0
    beyond_bound: int = 0  # unconfirmed, because too many waits were pending
    waits: int = 0  # pending now, and those that have ended within the last second


class _Message:
    """A message whose confirmations are awaited."""

    __slots__ = ("_confirmed", "_done", "_open")

    def __init__(self, done: Done) -> None:
        self._done = done
        self._open = 1  # waits, and one until all have begun
        self._confirmed = Confirmed(0, 0)

    def begin_wait(self) -> None:
        self._open += 1

    def add(self, sessions: int, by_app: int) -> None:
        """Count confirmed sessions."""
        self._confirmed = Confirmed(self._confirmed.sessions + sessions, self._confirmed.by_app + by_app)

    def end_wait(self) -> None:
        self._open -= 1
        if not self._open:
            self._done(self._confirmed)


class _Wait:
    """The wait for one session here, or for those of other nodes."""

    __slots__ = ("ends_at", "is_over", "key", "message", "missing", "pause_s", "session", "target_bytes")

    def __init__(self, message: _Message, ends_at: float, session: Session | None, missing: int) -> None:
        self.message = message
        self.ends_at = ends_at  # monotonic seconds
        self.session = session  # None: those of other nodes
        self.missing = missing  # of these, how many have not been reported on
        self.target_bytes = 0  # of the session's connection, acknowledged once the message is
        self.key: tuple[int, int] | str | None = (
            None  # by which a client or a node confirms; None: the kernel
        )
        self.pause_s = FIRST_PAUSE_S  # until the next look
        self.is_over = False


class Confirmations:
    """The waits of one node. If one causes an error, `faults` contains it, and the session is unconfirmed."""

    def __init__(self, faults: Faults, *, max_waits: int = MAX_WAITS) -> None:
        self._faults = faults
        self._max_waits = max_waits
        self._counters = ConfirmationCounters()
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, _Wait]] = []  # heap: time of the next look; some waits are over
        # By the session's number and the message's, or by the token of a message to other nodes.
        self._by_key: dict[tuple[int, int] | str, _Wait] = {}

    def expect(
        self,
        sessions: Iterable[Session],
        number: int,
        now: float,
        within_s: float,
        done: Done,
        *,
        elsewhere: int = 0,
        token: str = "",
    ) -> None:
        """Wait for the confirmations of a message that was just sent; `done` may be called immediately.

        Args:
            sessions: those here to whose connections it was handed.
            number: of the message in its `deliver` packet.
            now: monotonic seconds.
            within_s: for so long.
            done: gets the confirmed sessions of all waits, once.
            elsewhere: for how many sessions other nodes got it, which report under `token`.
        """
        message = _Message(done)
        for session in sessions:
            if (wait := self._begin(message, now, now + within_s, session)) is not None:
                with self._faults.contained("confirmation", partial(self._end, wait, 0, 0)):
                    self._prepare(wait, session, number)
        ends_at = now + within_s + REPORT_TIME_S
        if elsewhere and (wait := self._begin(message, now, ends_at, missing=elsewhere)) is not None:
            wait.key = token
            self._by_key[token] = wait
        message.end_wait()

    def confirmed_by_client(self, session: Session, numbers: Iterable[int]) -> None:
        """A client has confirmed messages; of those that nothing is awaited of, nothing follows."""
        for number in numbers:
            if (wait := self._by_key.get((session.number, number))) is not None:
                self._end(wait, 1, 1)

    def reported(self, token: str, devices: int, confirmed: Confirmed) -> None:
        """Another node has reported on a message that it got for some devices."""
        if (wait := self._by_key.get(token)) is None:
            return
        wait.missing -= devices
        if wait.missing > 0:
            wait.message.add(*confirmed)
        else:
            self._end(wait, *confirmed)

    def next_at(self) -> float:
        """Return when `look` has something to do; infinite for never."""
        return self._due[0][0] if self._due else math.inf

    def look(self, now: float) -> None:
        """Look after the waits whose time has come, at most `MAX_LOOKS_PER_TURN`."""
        for _ in range(MAX_LOOKS_PER_TURN):
            if self.next_at() > now:
                return
            wait = heapq.heappop(self._due)[2]
            if not wait.is_over:
                with self._faults.contained("confirmation", partial(self._end, wait, 0, 0)):
                    self._look_after(wait, now)

    def statistics(self) -> ConfirmationCounters:
        return replace(self._counters, waits=len(self._due))

    def _begin(
        self, message: _Message, now: float, ends_at: float, session: Session | None = None, missing: int = 0
    ) -> _Wait | None:
        if len(self._due) >= self._max_waits:
            self._counters.beyond_bound += 1
            return None
        message.begin_wait()
        wait = _Wait(message, ends_at, session, missing)
        self._look_again(wait, now)
        return wait

    def _prepare(self, wait: _Wait, session: Session, number: int) -> None:
        """Note what confirms the message of a wait; end the wait if nothing can."""
        sent = None
        if session.transport is not None and not session.features.confirms:
            sent = session.transport.acknowledged_bytes(session.handle)
        if session.transport is not None and session.features.confirms:
            wait.key = session.number, number
            self._by_key[wait.key] = wait
        elif sent is not None:
            wait.target_bytes = sent[1]
        else:
            self._end(wait, 0, 0)

    def _look_after(self, wait: _Wait, now: float) -> None:
        session = wait.session
        transport = None if session is None else session.transport
        if session is not None and transport is None:
            self._end(wait, 0, 0)  # the connection is lost
            return
        if session is not None and transport is not None and wait.key is None:
            sent = transport.acknowledged_bytes(session.handle)
            if sent is not None and sent[0] >= wait.target_bytes:
                self._end(wait, 1, 0)
                return
        if now >= wait.ends_at:
            self._end(wait, 0, 0)
        else:
            self._look_again(wait, now)

    def _look_again(self, wait: _Wait, now: float) -> None:
        """Look after a wait after a pause, which doubles."""
        heapq.heappush(self._due, (min(now + wait.pause_s, wait.ends_at), next(self._numbers), wait))
        wait.pause_s = min(2 * wait.pause_s, MAX_PAUSE_S)

    def _end(self, wait: _Wait, sessions: int, by_app: int) -> None:
        """End a wait, of which so many sessions have confirmed."""
        if wait.is_over:
            return
        wait.is_over = True
        if wait.key is not None:
            del self._by_key[wait.key]
        if wait.session is not None:
            self._counters.by_app += by_app
            self._counters.by_kernel += sessions - by_app
            self._counters.unconfirmed += not sessions
        wait.message.add(sessions, by_app)
        wait.message.end_wait()
