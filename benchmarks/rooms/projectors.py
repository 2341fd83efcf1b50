"""A projector of rooms in a process of its own, as ``presence rooms run`` is."""

import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Self

from loadtest import usage

READY: Final = "rooms: running"
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0


class ProjectorProcess:
    """A running projector; a ``with`` block stops it.

    Args:
        flags: of ``presence rooms run``.
        python: of the installation that has it.

    Attributes:
        lines: its log so far.

    Raises:
        RuntimeError: it did not start.
    """

    def __init__(self, url: str, *flags: str, python: str = sys.executable) -> None:
        command = [python, "-P", "-m", "presence", "rooms", "run", "--redis", url, *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._is_ready: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        with suppress(queue.Empty):
            if self._is_ready.get(timeout=START_TIMEOUT_S):
                return
        self.kill()
        raise RuntimeError(f"the projector did not start: {self.lines[-5:]}")

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.lines.append(line.rstrip())
                if READY in line:
                    self._is_ready.put(True)
        self._is_ready.put(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with suppress(OSError):
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have the process stand still."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def cpu_s(self) -> float:
        return usage.cpu_seconds(self.process.pid)
