"""Exit statuses, error output and signal handling that all commands share.

Tests: `tests/system/end_to_end/test_secrets.py`, `tests/cli/test_main.py`.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from presence.common.redaction import redact_text
from presence.common.text import printable

OK = 0
FAILED = 1
STDERR = 2
USAGE = 2  # the command line or the settings are wrong
PROGRESS_INTERVAL_S = 2.0  # a million entries of the streams take some 6 s


def print_error(message: object) -> None:
    """Print a message on standard error, with secrets removed and control characters escaped."""
    for line in redact_text(str(message)).splitlines():
        print(f"presence: {printable(line)}", file=sys.stderr, flush=True)


def print_lack(reason: str) -> None:
    """Print what the process lacks; if that is memory, even for this line, a fixed text."""
    try:
        print_error(reason)
    except (MemoryError, RuntimeError):
        os.write(STDERR, b"presence: out of memory\n")


def abandon_output() -> None:
    """Redirect standard output to /dev/null, or Python reports at exit that it cannot flush it."""
    with suppress(OSError, ValueError):  # it may have no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextmanager
def half_made_loops_ignored() -> Iterator[None]:
    """Print nothing about a loop of asyncio that found no descriptor: the command says what it lacks.

    Its finalizer looks for an attribute that the loop does not have yet.
    """
    before = sys.unraisablehook

    def report(unraisable: "sys.UnraisableHookArgs") -> None:
        error = unraisable.exc_value
        if not (isinstance(error, AttributeError) and error.name == "_ssock"):
            before(unraisable)

    sys.unraisablehook = report
    try:
        yield
    finally:
        if sys.unraisablehook is report:
            sys.unraisablehook = before


def silence_finalizers() -> None:
    """Print nothing about objects that a lack left half made, when Python discards them at exit."""
    sys.unraisablehook = lambda _unraisable: None
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except (OSError, ValueError):  # a full disk: Python would try again at exit, and print a traceback
            abandon_output()


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt as SIGINT does, so that ``with`` blocks clean up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def sighup_ignored() -> Iterator[None]:
    """Ignore SIGHUP until a handler is installed; it never ends the process."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


class Progress:
    """Reports on standard error how far a command has read the streams, every `PROGRESS_INTERVAL_S`."""

    def __init__(self, command: str, done: str) -> None:
        self._command = command
        self._done = done  # what happens to entries, as "scanned"
        self._said_at = time.monotonic()

    def __call__(self, entries: int, total: int) -> None:
        now = time.monotonic()
        if now - self._said_at >= PROGRESS_INTERVAL_S:
            self._said_at = now
            print_error(f"{self._command}: {entries:,} of {total:,} entries {self._done}")
