"""Those who turn and handle, in processes of their own that can be killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from loadtest.followups.handler import FOLDER

RETRY_S = 3.0  # until what a killed one had is handled by another
STOP_TIMEOUT_S = 10.0


class Runners:
    """``presence followups run``, several times; whoever is killed is replaced.

    Args:
        url: of Redis.
        config: the file with the rules.
        folder: where the handlers write.
        count: how many.

    Attributes:
        killed: how many so far.
    """

    def __init__(self, url: str, config: Path, folder: Path, count: int) -> None:
        self._command = [
            *(sys.executable, "-m", "presence", "followups", "run", "--redis", url, "--config", str(config)),
            *("--handler", "loadtest.followups.handler:handle", "--retry", str(RETRY_S)),
        ]
        self._environment = {**os.environ, FOLDER: str(folder)}
        self._running = [self._start() for _ in range(count)]
        self.killed = 0

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self._command, env=self._environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def revive(self) -> None:
        """Replace those that have ended, as one does that starts while Redis is away."""
        self._running = [each if each.poll() is None else self._start() for each in self._running]

    def kill(self, number: int) -> None:
        """Kill one and start another in its place."""
        place = number % len(self._running)
        self._running[place].kill()
        self._running[place].wait()
        self._running[place] = self._start()
        self.killed += 1

    def __enter__(self) -> "Runners":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for each in self._running:
            each.send_signal(signal.SIGTERM)
        for each in self._running:
            try:
                each.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
