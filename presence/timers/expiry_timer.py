"""A timer by the time to live of keys: Redis notifies listeners of expired keys."""

import math
import time
from typing import Final

import msgpack

from presence.common.errors import StoreError, StoreUnavailable
from presence.store.key_events import ExpiryNotificationsOff, KeyExpirations
from presence.store.script_runner import Scripting
from presence.timers.interface import MAX_EVENTS, Due, TimerError
from presence.timers.shared_timer import Leasing, SharedTimer

RECONCILE_INTERVAL_S: Final = 5.0
MAX_QUEUED_NAMES: Final = 100_000  # queued in a process: about 10 MB


class NotificationsOff(TimerError):
    """Redis does not notify of expired keys, and this user may not enable it; the message says what to do."""


class ExpiryTimer(SharedTimer):
    """A timer whose events each have a key that expires when they are due.

    Redis removes an expired key when it is accessed, and otherwise in cycles, 10 per second, each of which
    tries some keys at random. Only then it notifies the current listeners of the name, without the value. So
    the delay of a notification depends on the number of keys and has no bound, and there is none for a key
    that expired while Redis was down.

    Therefore the key is only an alarm. Event, payload and due time are kept as in a `DelayQueue`; a process
    that is notified claims the event, and gets it if it is due and not claimed. Missed events are found by a
    scan: every `reconcile_s`, after each (re)connection, and after the queue of names was full. This bounds
    the lateness by `reconcile_s` while some process calls `due`, or by more if more events are missed than
    handled.

    Never early by Redis' clock. At least once: events claimed by a worker that died come again after their
    lease, whose end has an alarm, too. Every listening process claims every event, so with N processes N - 1
    calls are useless: use it with few listeners. Otherwise a `DelayQueue` does the same at less cost.

    It listens in threads of its own, from the first `due` or `wait` to `close`; call the methods from one
    thread at a time.

    Args:
        scripting, base, leasing, events_max: see `SharedTimer`; the timer listens at the URL of `scripting`.
        reconcile_s: seconds between two scans.
        heard_max: maximum of names waiting to be claimed.

    Attributes:
        heard: notifications received.
        void: of these, events that were cancelled, or claimed by another process.
        scans: number of scans.
        found: events that scans handed out: missed, or notified at the same moment.
        trouble: why a server is not listened to, as of the last check; "" if all are.

    Raises:
        TimerError: `reconcile_s` is out of bounds.
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
        index = (msgpack.packb([alarms]), "due")
        super().__init__(scripting, base, leasing, events_max=events_max, index=index)
        self._expiries = KeyExpirations(scripting.url, alarms, heard_max)
        self._reconcile_s = reconcile_s
        self._is_open = False
        self._next_scan: float | None = None  # None: immediately
        self.heard = self.void = self.scans = self.found = 0
        self.trouble = ""

    def due(self, limit: int = 100) -> list[Due]:
        """Hand out events of received notifications, and every `reconcile_s` missed ones; never wait.

        Fewer than `limit`, or none, does not mean that nothing else is due: notifications may be outstanding.

        Raises:
            NotificationsOff: Redis does not notify; by the first call.
            TimerError: `limit` is out of bounds.
            StoreUnavailable, StoreError: Redis is unreachable, or refused.
        """
        self._check_limit(limit)
        self._open()
        if self._expiries.pop_missed():
            self._next_scan = None
        if self._next_scan is None or time.monotonic() >= self._next_scan:
            return self._scan(limit)
        while names := self._expiries.pop(limit):
            if dues := self._claim(names):
                return dues
        return []

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` until `due` may have events; return whether it may.

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
        """Number of servers that are listened to now."""
        return self._expiries.servers

    @property
    def dropped(self) -> int:
        """Number of notifications dropped from the full queue."""
        return self._expiries.dropped

    def close(self) -> None:
        """Stop listening and end the threads; `due` restarts them. The `Scripting` stays open."""
        self._expiries.close()
        self._is_open, self._next_scan = False, None

    def _open(self) -> None:
        """Listen, unless already listening.

        The first time it has to succeed; later, scans find what is missed meanwhile.
        """
        if not self._is_open:
            try:
                self._expiries.refresh()
            except ExpiryNotificationsOff as error:
                raise NotificationsOff(str(error)) from error
            self._is_open = True

    def _scan(self, limit: int) -> list[Due]:
        """Hand out due events, with or without notification."""
        if self.scans:  # servers of a cluster may have changed
            try:
                self._expiries.refresh()
                self.trouble = ""
            except (StoreUnavailable, StoreError) as error:
                self.trouble = str(error)
        dues, is_more = self._claim_due(limit)
        self.scans += 1
        self.found += len(dues)
        self._next_scan = None if is_more else time.monotonic() + self._reconcile_s
        return dues

    def _claim(self, names: list[str]) -> list[Due]:
        next_scan, self._next_scan = self._next_scan, None  # if this fails, only a scan finds them
        dues, is_more = self._run_claim_script("claim", msgpack.packb(names, use_bin_type=False))
        self.heard += len(names)
        if not is_more:
            self._next_scan = next_scan
            self.void += len(names) - len(dues)
        return sorted(dues, key=lambda due: due.due_ms)
