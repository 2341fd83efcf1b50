"""The processes that serve operators beside a server, seen from the server.

The address is bound here, so that it is known before anything is ready, and that a process which is started
anew listens at the same one. From then on nobody waits for these processes, whatever becomes of them: they
have the asking ends of the lines (see `presence.inquiries`) and a control line, whose end is their order to
end. The server keeps what it gave them, untouched, for the keeper's successor: `Operators.tend` starts it.
"""

import math
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import structlog

from presence.admin import frames
from presence.admin.keeper import LONG_LIFE_S, pause_s
from presence.admin.start import Start
from presence.heartbeats import SilenceWatch
from presence.inquiries import line_pair
from presence.places import ended
from presence.ports import Address, CannotListen
from presence.settings import Settings, admin_host, admin_port
from presence.transports import tcp

END_S: Final = 2.0  # the keeper takes less: half a second for requests, and it kills
BACKLOG: Final = 128
_CONTROL_S: Final = 1.0  # for the start message, which a kernel takes at once
RETRY_S: Final = 1.0  # after no process could be started, at least

log = structlog.get_logger("presence.operators")


class Operators:
    """The processes, and what they share with the server.

    Args:
        settings: checked settings.
        redis_url: where Redis is.
        listeners: sockets that listen; they are closed at the end.
        workers: how many there are to ask.
    """

    def __init__(
        self, settings: Settings, redis_url: str, listeners: list[socket.socket], workers: int
    ) -> None:
        self.address = _address_of(listeners)
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        self.url = f"http://{host}:{self.address.port}/"
        self._lines = [line_pair() for _ in range(workers)]
        self._listeners = listeners
        self._control: socket.socket | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._started_at = self._start_at = 0.0
        self._failures = 0
        self._hang_timeout_s = settings.hang_timeout
        self._watch = SilenceWatch(settings.hang_timeout, 0.0)
        asking = [each.fileno() for each, _ in self._lines]
        heard = tuple(each.fileno() for each in listeners)
        start = Start(settings, redis_url, heard, tuple(asking), self.address, self.url)
        self._message = frames.framed(pickle.dumps(start))
        self._descriptors = [*heard, *asking]
        self._start()

    def line(self, number: int = 1) -> socket.socket:
        """Return the answering end of a worker's line; workers count from 1."""
        return self._lines[number - 1][1]

    def become_worker(self, number: int) -> socket.socket:
        """Forget, in a process that was forked, all but the end that is returned: that worker's own."""
        own = self.line(number)
        self._hang_up()
        self._close_all_but(own)
        return own

    def tend(self) -> float | None:
        """Start the keeper again if it has ended, with a pause if it ends soon again, and end one that hangs;
        waits for nobody else. To be called about each second.

        Returns:
            In how many seconds this must be called again at the latest; None: when the keeper has ended.
        """
        if self._keeper is not None:
            self._hear()
            status = self._keeper.poll()
            if status is None:
                if self._watch.is_hung(time.monotonic()):
                    log.error("the keeper of what serves operators hangs, and is ended")
                    self._keeper.kill()  # and the process that it keeps ends with it
                    self._watch = SilenceWatch(math.inf, time.monotonic())  # so that it is logged once
                return None
            self._ended(status)
        if time.monotonic() >= self._start_at:
            self._start()
        return None if self._keeper is not None else max(0.0, self._start_at - time.monotonic())

    def _hear(self) -> None:
        said = b""
        if self._control is not None:
            with suppress(OSError):  # nothing came
                said = self._control.recv(frames.HEARD_BYTES)
        if said:
            self._watch.heard()
        if frames.HUNG in said:
            log.error("the process that serves operators hung, and is replaced")

    def reload(self) -> None:
        """Have the files read again whose content may change."""
        if self._control is not None:
            with suppress(OSError):  # nobody is there, or nobody takes it
                self._control.send(frames.RELOAD)

    def stop(self) -> None:
        """End the processes; takes less than a second, and never more than `END_S`."""
        self._hang_up()
        if self._keeper is not None:
            try:
                self._keeper.wait(END_S)
            except subprocess.TimeoutExpired:
                self._keeper.kill()  # and the process that it keeps ends with it
                self._keeper.wait()
        self._close_all_but(None)

    def _start(self) -> None:
        timeout, numbers = str(self._hang_timeout_s), map(str, self._descriptors)
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            self._put_off(error)
            return
        try:
            self._keeper = subprocess.Popen(  # noqa: S603 - our own module, and numbers
                [sys.executable, *_path_flags(), "-m", "presence.admin.keeper", timeout, *numbers],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                pass_fds=self._descriptors,
                start_new_session=True,  # Ctrl-C on the terminal is the server's to act on
            )
        except OSError as error:  # no memory, or no room for one more process: users come first
            ours.close()
            self._put_off(error)
            return
        finally:
            theirs.close()
        self._started_at, self._control = time.monotonic(), ours
        self._watch = SilenceWatch(self._hang_timeout_s, self._started_at)
        try:
            ours.settimeout(_CONTROL_S)
            ours.sendall(self._message)
            ours.setblocking(False)  # from here on nothing waits for the other end
        except OSError:
            self._hang_up()  # so it ends, if it has not, and another is started

    def _ended(self, status: int) -> None:
        lived_s = time.monotonic() - self._started_at
        self._keeper = None
        self._hang_up()
        self._failures = 1 if lived_s >= LONG_LIFE_S else self._failures + 1
        self._start_at = time.monotonic() + pause_s(self._failures)
        log.error(
            "the keeper of what serves operators ended, and is replaced",
            **ended(status),
            lived_s=round(lived_s, 1),
            pause_s=pause_s(self._failures),
        )

    def _put_off(self, error: OSError) -> None:
        self._failures += 1
        self._start_at = time.monotonic() + max(RETRY_S, pause_s(self._failures))
        log.error("operators cannot be served now", error=error.strerror or str(error))

    def _close_all_but(self, own: socket.socket | None) -> None:
        for each in (*self._listeners, *(end for line in self._lines for end in line)):
            if each is not own:
                each.close()

    def _hang_up(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None


@contextmanager
def serving(settings: Settings, redis_url: str, *, asked_for: bool, workers: int = 1) -> Iterator[Operators]:
    """Serve operators for the length of a ``with`` block.

    Args:
        settings: checked settings.
        redis_url: where Redis is.
        asked_for: whether `settings.admin` is what somebody wants. Else another port will do.
        workers: how many there are to ask.

    Raises:
        CannotListen: the address that was asked for cannot be had.
    """
    operators = Operators(settings, redis_url, _listening(settings, asked_for), workers)
    log.info("operators", url=operators.url)
    try:
        yield operators
    finally:
        operators.stop()


def _listening(settings: Settings, asked_for: bool) -> list[socket.socket]:
    host, port = admin_host(settings.admin), admin_port(settings.admin)
    try:
        listeners = tcp.open_listeners(host, port)
    except OSError as error:
        if asked_for:
            raise CannotListen(settings.admin, error) from error
        log.warning("operators are served at another port", address=settings.admin, error=error.strerror)
        listeners = tcp.open_listeners(host, 0)
    for each in listeners:
        each.listen(BACKLOG)
    return listeners


def _address_of(listeners: list[socket.socket]) -> Address:
    host, port = listeners[0].getsockname()[:2]
    return Address(host, port)


def _path_flags() -> list[str]:
    """Return what keeps a process from loading modules of the working directory, unless we do."""
    return [] if os.getcwd() in sys.path or "" in sys.path else ["-P"]
