"""How every subcommand ends and complains: exit statuses, one line on standard error."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from presence.common.redaction import redact_text
from presence.common.text import printable

OK = 0
FAILED = 1
USAGE = 2  # the command line or the settings are wrong


def complain(message: object) -> None:
    """Print a message on standard error, each of its lines safe for a terminal and without secrets."""
    for line in redact_text(str(message)).splitlines():
        print(f"presence: {printable(line)}", file=sys.stderr, flush=True)


def abandon_output() -> None:
    """Lead standard output nowhere, or Python would complain at exit that it cannot flush it."""
    with suppress(OSError, ValueError):  # it may be no descriptor at all
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt as SIGINT does, so that ``with`` blocks end in order."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def sighup_ignored() -> Iterator[None]:
    """Let SIGHUP do nothing until somebody takes it for an order, and never end the process."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
