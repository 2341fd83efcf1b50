"""A timer by the time to live of keys: Redis tells when one has expired."""

import math
import time
from typing import Final

import msgpack

from presence.common.errors import StoreError, StoreUnavailable
from presence.store.key_events import ExpiriesOff, KeyExpirations
from presence.store.script_runner import Scripting
from presence.timers.interface import MAX_EVENTS, Due, TimerError
from presence.timers.shared_timer import Leasing, SharedTimer

RECONCILE_INTERVAL_S: Final = 5.0
MAX_QUEUED_NAMES: Final = 100_000  # names that wait in a process: about 10 MB


class NotificationsOff(TimerError):
    """Redis does not tell which keys expire, and this user may not change it; the message says what to do."""


class ExpiryTimer(SharedTimer):
    """Events beside each of which stands a key that expires when it is due; a `LeasedTimer`.

    Redis removes an expired key when it is asked for, and otherwise in cycles, 10 per second, each of which
    tries some keys at random. Only then it tells, to those who listen at that moment, the name without the
    value. So how late it tells depends on how many keys there are, and there is no bound; of a key that
    expired while Redis was down it tells nothing.

    So the key is an alarm and no more. The event, its payload and its time are kept as in a `DelayQueue`; a
    process that hears an alarm claims the event, and gets it if its time has come and no other had it. All
    that was missed is found by a scan, every `reconcile_s`, after each (re)connection, and when what was
    heard found no room. That bounds how late an event can be, as long as some process calls `due`: by
    `reconcile_s`, or longer where more are missed than are handled.

    Never early by Redis' clock. At least once: what a worker that died had claimed comes again after its
    lease, at whose end an alarm goes off, too. Every process that listens asks for every event, so with N of
    them N - 1 calls are in vain: for few listeners. Otherwise a `DelayQueue` does all of this at less cost.

    Threads of its own listen, from the first `due` or `wait` to `close`; the methods are called from one
    thread at a time.

    Args:
        scripting: the connections; its URL is listened to, too.
        base: what the keys begin with, see `Keys.timer`.
        leasing: how events are handed out.
        events_max: how many it may hold, dead letters among them.
        reconcile_s: seconds between two scans.
        heard_max: names heard that may wait to be claimed.

    Attributes:
        heard: expiries that were told.
        void: of these, those that another process had taken, or that were cancelled.
        scans: looks at what must have been missed.
        found: events that a scan handed out: missed, or told at the same moment.
        trouble: why a server is not listened to, by the last look; "" if all are.

    Raises:
        TimerError: `reconcile_s` makes no sense.
    """

    def __init__(
        self,
        scripting: Scripting,
        base: str,
        leasing: Leasing | None = None,
        *,
        events_max: int = MAX_EVENTS,
        reconcile_s: float = RECONCILE_INTERVAL_S,
        heard_max: int = MAX_QUEUED_NAMES,
    ) -> None:
        if not 0.01 <= reconcile_s < math.inf:
            raise TimerError(f"reconcile_s {reconcile_s!r} is not 0.01 or more")
        alarms = f"{base}:alarm:"
        super().__init__(
            scripting, base, leasing or Leasing(), events_max, index=(msgpack.packb([alarms]), "due")
        )
        self._expiries = KeyExpirations(scripting.url, alarms, heard_max)
        self._reconcile_s = reconcile_s
        self._is_open = False
        self._next_scan: float | None = None  # None: at once
        self.heard = self.void = self.scans = self.found = 0
        self.trouble = ""

    def due(self, limit: int = 100) -> list[Due]:
        """Hand out what was heard to have expired, and now and then what was missed; never wait.

        Fewer than `limit`, or none, does not mean that nothing else is due: nobody may have told yet.

        Raises:
            NotificationsOff: Redis tells nothing; by the first call.
            TimerError: `limit` is out of bounds.
            StoreUnavailable, StoreError: Redis cannot be reached, or refused.
        """
        self._check_limit(limit)
        self._open()
        if self._expiries.take_missed():
            self._next_scan = None
        if self._next_scan is None or time.monotonic() >= self._next_scan:
            return self._scan(limit)
        while names := self._expiries.take(limit):
            if dues := self._claim(names):
                return dues
        return []

    def wait(self, seconds: float) -> bool:
        """Wait until `due` may have something, for so long at most; return whether it may.

        Raises:
            As `due`.
        """
        self._open()
        if self._next_scan is None:
            return True
        left_s = self._next_scan - time.monotonic()
        return self._expiries.wait(max(0.0, min(seconds, left_s))) or seconds >= left_s

    @property
    def servers(self) -> int:
        """How many servers are listened to at present."""
        return self._expiries.servers

    @property
    def dropped(self) -> int:
        """How many expiries found no room among those that wait."""
        return self._expiries.dropped

    def close(self) -> None:
        """Stop listening, and end the threads; `due` begins anew. Its `Scripting` stays open."""
        self._expiries.close()
        self._is_open, self._next_scan = False, None

    def _open(self) -> None:
        """Listen, unless that was begun.

        The first time it has to work; later on what is missed meanwhile is found by scans.
        """
        if not self._is_open:
            try:
                self._expiries.look()
            except ExpiriesOff as error:
                raise NotificationsOff(str(error)) from error
            self._is_open = True

    def _scan(self, limit: int) -> list[Due]:
        """Hand out what is due, told or not."""
        if self.scans:  # servers of a cluster may have come or gone
            try:
                self._expiries.look()
                self.trouble = ""
            except (StoreUnavailable, StoreError) as error:
                self.trouble = str(error)
        dues, is_more = self._run_claim_script("due", limit)
        while is_more and not dues:  # a slice of dead letters is no answer
            dues, is_more = self._run_claim_script("due", limit)
        self.scans += 1
        self.found += len(dues)
        self._next_scan = None if is_more else time.monotonic() + self._reconcile_s
        return dues

    def _claim(self, names: list[str]) -> list[Due]:
        next_scan, self._next_scan = self._next_scan, None  # nobody names them again, should this fail
        dues, is_more = self._run_claim_script("claim", msgpack.packb(names, use_bin_type=False))
        self.heard += len(names)
        if not is_more:
            self._next_scan = next_scan
            self.void += len(names) - len(dues)
        return sorted(dues, key=lambda due: due.due_ms)
