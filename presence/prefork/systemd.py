"""What a service manager is told by datagrams: that the server is ready, reloads, stops, and lives.

The protocol is that of systemd's ``sd_notify(3)``: lines ``NAME=value`` to the Unix socket that is named by
``NOTIFY_SOCKET``; one that begins with ``@`` has no name in the file system. Only the process that the
manager started may speak, so the variables are taken out of the environment: workers, an embedded Redis and
whoever else is started later have nothing to say there. Each message has a socket of its own, closed at once,
which no child inherits.
"""

import os
import socket
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final

SEND_TIMEOUT_S: Final = 0.5  # with a manager whose queue is full; far below any time-out of its own
PINGS_PER_PERIOD: Final = 3  # so that one that comes late does no harm
_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


@dataclass(frozen=True, slots=True)
class Notifier:
    """Tells the service manager; where there is none, nobody. No call raises."""

    address: str = ""  # of its socket, as the system takes it; "" if nobody listens
    ping_interval_s: float | None = None  # seconds between two signs of life; None: none is wanted

    def ready(self, status: str) -> None:
        """The service is at work; after `reloading`: the reload is over."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Files are read again, from this moment on; `ready` ends it."""
        now_us = (
            time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        )  # by which the manager orders what it hears
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}")

    def stopping(self, status: str) -> None:
        """The service ends."""
        self._send("STOPPING=1", f"STATUS={status}")

    def ping(self) -> None:
        """The service lives. Never waits: the next one comes soon."""
        self._send("WATCHDOG=1", timeout_s=0.0)

    def _send(self, *lines: str, timeout_s: float = SEND_TIMEOUT_S) -> None:
        if not self.address:
            return
        message = "\n".join(line.replace("\n", " ") for line in lines).encode("utf-8", "replace")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(timeout_s)
                sock.sendto(message, self.address)
        except OSError:  # nobody listens any more: the service is not to suffer by it
            return


SILENT: Final = Notifier()


def from_environment(environ: MutableMapping[str, str] | None = None) -> Notifier:
    """Return who tells the manager of this process, and take from the environment what led to him.

    Args:
        environ: `os.environ` by default.
    """
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
    """Signs of life from a loop that waits for other things, too: it gives them when it comes by.

    Args:
        notifier: who tells them.
    """

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._due_at = 0.0

    def notify(self) -> float | None:
        """Give one if it is due; return in how many seconds the loop has to come by again, None: never."""
        if self._notifier.ping_interval_s is None:
            return None
        now = time.monotonic()
        if now >= self._due_at:
            self._notifier.ping()
            self._due_at = now + self._notifier.ping_interval_s
        return self._due_at - now
