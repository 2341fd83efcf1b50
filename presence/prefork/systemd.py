"""Notifications to the service manager: ready, reloading, stopping, and watchdog pings.

The protocol is ``sd_notify(3)`` of systemd: datagrams of lines ``NAME=value`` to the Unix socket named by
``NOTIFY_SOCKET``; a leading ``@`` means an abstract socket. Only the process that the manager started may
notify it, so the variables are removed from the environment of workers, an embedded Redis and other children.
Each message uses a socket of its own, closed immediately, which no child inherits.
"""

import os
import socket
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final

SEND_TIMEOUT_S: Final = 0.5  # if the queue of the manager is full; far below any of its own time-outs
PINGS_PER_PERIOD: Final = 3  # so that a late one does no harm
_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


@dataclass(frozen=True, slots=True)
class Notifier:
    """Notifies the service manager, if there is one. No call raises."""

    address: str = ""  # of its socket, as the system takes it; "": there is no manager
    ping_interval_s: float | None = None  # seconds between two watchdog pings; None: no watchdog

    def starting(self, status: str, extend_s: float) -> None:
        """Notify that the start makes progress, and may take so much longer from now on."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(extend_s * 1_000_000)}", f"STATUS={status}")

    def ready(self, status: str) -> None:
        """Notify that the service is ready; after `reloading`, that the reload has finished."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Notify that a reload has begun; `ready` ends it."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000  # the manager orders messages by it
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", f"STATUS={status}")

    def ping(self) -> None:
        """Send a watchdog ping. Never waits, because the next ping follows soon."""
        self._send("WATCHDOG=1", timeout_s=0.0)

    def _send(self, *lines: str, timeout_s: float = SEND_TIMEOUT_S) -> None:
        if not self.address:
            return
        message = "\n".join(line.replace("\n", " ") for line in lines).encode("utf-8", "replace")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(timeout_s)
                sock.sendto(message, self.address)
        except OSError:  # the manager is gone, which must not disturb the service
            return


SILENT: Final = Notifier()


def from_environment(environ: MutableMapping[str, str] | None = None) -> Notifier:
    """Return the notifier for this process, and remove the variables from its environment."""
    environ = os.environ if environ is None else environ
    name, period_us, pid = (environ.pop(variable, "") for variable in _VARIABLES)
    if name[:1] not in {"/", "@"}:  # sockets of other kinds are for virtual machines
        return SILENT
    address = f"\0{name[1:]}" if name.startswith("@") else name
    is_for_us = pid in {"", str(os.getpid())}
    if is_for_us and period_us.isascii() and period_us.isdigit() and int(period_us) > 0:
        return Notifier(address, int(period_us) / 1_000_000 / PINGS_PER_PERIOD)
    return Notifier(address)


class Watchdog:
    """Paces the watchdog pings of a loop that also waits for other things."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._due_at = 0.0

    def notify(self) -> float | None:
        """Ping if it is due; return the seconds until the next call, None: never."""
        if self._notifier.ping_interval_s is None:
            return None
        now = time.monotonic()
        if now >= self._due_at:
            self._notifier.ping()
            self._due_at = now + self._notifier.ping_interval_s
        return self._due_at - now
