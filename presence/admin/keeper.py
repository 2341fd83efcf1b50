"""Keeps the process alive that serves operators: ``python -m presence.admin.keeper TIMEOUT DESCRIPTOR…``.

It stands between a server and that process, so that the server need not look after it: it starts it, again
whenever it ends or hangs, and ends it when the server is gone. It loads next to nothing, and between two
heartbeats (`presence.heartbeats`; the server watches the keeper) it does nothing.
Signals are not its orders: it ends when its standard input does, and so when whoever started it has died.

Args:
    TIMEOUT: how many seconds the process's event loop may stand still.
    DESCRIPTOR: what the process inherits: sockets that listen, the asking ends of the lines.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

from presence.admin import frames
from presence.heartbeats import ALIVE, SilenceWatch, interval_s

LONG_LIFE_S: Final = 60.0  # a process that lived so long is replaced as if it were the first to end
BACKOFF_FIRST_S: Final = 0.5
BACKOFF_LIMIT_S: Final = 30.0
NICENESS: Final = 5  # where processors are short, users come before operators, also while a server starts
END_GRACE_S: Final = 0.6  # for requests that are under way; then it is killed, stopped or not
IGNORED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Keeper:
    """Keeps one process.

    Args:
        control: from whoever started us: orders, and the end.
        message: what the process is told when it starts.
        descriptors: what it inherits.
        hang_timeout_s: how long its event loop may stand still.
    """

    def __init__(
        self, control: socket.socket, message: bytes, descriptors: list[int], hang_timeout_s: float
    ) -> None:
        self._control = control
        self._message = frames.framed(message)
        self._descriptors = descriptors
        self._hang_timeout_s = hang_timeout_s
        self._watch = SilenceWatch(hang_timeout_s, time.monotonic())
        self._kept: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._started_at = self._start_at = 0.0
        self._failures = 0

    def run(self) -> None:
        """Keep the process until the control line ends."""
        while True:
            if self._kept is None and time.monotonic() >= self._start_at:
                self._start()
            self._say(ALIVE)
            wait_s = interval_s(self._hang_timeout_s)
            if self._kept is None:
                wait_s = min(wait_s, max(0.0, self._start_at - time.monotonic()))
            watched = [each for each in (self._control, self._line) if each is not None]
            ready, _, _ = select.select(watched, [], [], wait_s)
            if self._control in ready:
                order = self._ordered()
                if not order:
                    break
                self._tell(order)
            if self._line is not None and self._line in ready:
                self._hear(self._line)
            if self._kept is not None and self._watch.is_hung(time.monotonic()):
                self._say(frames.HUNG)
                self._end(0.0)
        self._end(END_GRACE_S)

    def _ordered(self) -> bytes:
        try:
            return self._control.recv(64)
        except ConnectionError:
            return b""

    def _say(self, word: bytes) -> None:
        with suppress(OSError):  # it is stopped, and will know that it was; or gone, which an order tells
            self._control.send(word, socket.MSG_DONTWAIT)

    def _hear(self, line: socket.socket) -> None:
        try:
            said = line.recv(frames.HEARD_BYTES)
        except OSError:
            said = b""
        if said:
            self._watch.heard()
        else:
            self._end(0.0)  # it has ended, or is about to

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        safe = ["-P"] if sys.flags.safe_path else []
        try:
            self._kept = subprocess.Popen(  # noqa: S603 - our own module, and numbers
                [sys.executable, *safe, "-m", "presence.admin"],
                stdin=theirs.fileno(),
                pass_fds=self._descriptors,
            )
        except OSError:  # no memory, or no room for one more process
            ours.close()
            self._put_off()
            return
        finally:
            theirs.close()
        self._started_at, self._line = time.monotonic(), ours
        self._watch = SilenceWatch(self._hang_timeout_s, self._started_at)
        ours.settimeout(END_GRACE_S)  # the message may be longer than what the kernel keeps
        self._tell(self._message)

    def _tell(self, order: bytes) -> None:
        """Pass something on; who does not take it is ended by the next look at the line."""
        if self._line is not None:
            with suppress(OSError):
                self._line.sendall(order)

    def _end(self, grace_s: float) -> None:
        """End the process, after some time for it to do so by itself."""
        if self._line is None or self._kept is None:
            return
        self._line.close()  # which is its order
        try:
            self._kept.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._kept.kill()
            self._kept.wait()
        self._kept = self._line = None
        self._put_off()

    def _put_off(self) -> None:
        """Say when the next process is due."""
        now = time.monotonic()
        self._failures = 1 if now - self._started_at >= LONG_LIFE_S else self._failures + 1
        self._start_at = now + pause_s(self._failures)


def pause_s(ends: int) -> float:
    """Return how long to wait after so many ends in a row: the first is made good at once."""
    return min(BACKOFF_LIMIT_S, BACKOFF_FIRST_S * 2.0 ** min(ends - 2, 16)) if ends > 1 else 0.0


def main() -> int:
    """Keep the process; return the exit status."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)  # which the process inherits
    os.nice(NICENESS)  # this, too
    control = socket.socket(fileno=0)
    message = frames.read(control)
    if message is not None:
        hang_timeout, *descriptors = sys.argv[1:]
        Keeper(control, message, [int(each) for each in descriptors], float(hang_timeout)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
