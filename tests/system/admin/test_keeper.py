"""A process for operators that always ends is started less and less often."""

import socket
import time

from presence.admin import frames
from tests.admin.processes import children
from tests.admin.test_keeper import control

__all__ = ["control"]  # fixtures


def test_a_process_that_always_ends_is_started_less_and_less(control: tuple[socket.socket, int]) -> None:
    line, pid = control
    line.sendall(frames.framed(b"no message at all"))
    seen: set[int] = set()
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
        seen.update(children(pid))
        time.sleep(0.01)
    assert 1 <= len(seen) <= 4  # after 0, 0, 0.5, 1 and 2 s, and what it takes to begin
