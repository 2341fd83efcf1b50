"""Several tests run at a time; one that measures has the machine to itself.

A lock that many hold together or one holds alone, over processes. Whoever wants in passes the gate first
and waits for the lock there, so that those who come later cannot keep out somebody who waits to be alone.
The locks are on files of this folder, so they hold among all runs of one checkout.
"""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

GATE = Path(__file__).with_name("conftest.py")
ROOM = Path(__file__)


@contextlib.contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """Wait for a test's turn, and hold it for the length of a ``with`` block."""
    with ROOM.open() as room, GATE.open() as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # closing does not do it while a child is being forked
