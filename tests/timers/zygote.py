"""Commands in processes that are forked from one which has loaded everything: each starts in milliseconds.

Lines of JSON on standard input: ``{"argv", "env", "log"}`` starts a command, whose standard error is a file,
and is answered with its process id; ``{"poll": pid}`` with its exit status, or null while it lives.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from presence import logs

WAIT_S = 20.0


class Command:
    """A running command."""

    def __init__(self, pid: int, zygote: "Zygote") -> None:
        self.pid = pid
        self._zygote = zygote
        self._status: int | None = None

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return the exit status; None while it lives. Negative: a signal ended it."""
        if self._status is None:
            self._status = self._zygote.ask({"poll": self.pid})
        return self._status

    def wait(self) -> int:
        deadline = time.monotonic() + WAIT_S
        while (status := self.poll()) is None:
            assert time.monotonic() < deadline, "it does not end"
            time.sleep(0.005)
        return status


class Zygote:
    """The process that has loaded everything."""

    def __init__(self, asked: IO[str], answered: IO[str]) -> None:
        self._asked = asked
        self._answered = answered

    def run(self, argv: list[str], env: dict[str, str], log: Path) -> Command:
        return Command(self.ask({"argv": argv, "env": env, "log": str(log)}), self)

    def ask(self, what: dict[str, Any]) -> Any:
        self._asked.write(json.dumps(what) + "\n")
        self._asked.flush()
        return json.loads(self._answered.readline())


@contextlib.contextmanager
def zygote() -> Iterator[Zygote]:
    """Run one for the length of a ``with`` block."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.timers.zygote"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Zygote(process.stdin, process.stdout)


def _main() -> None:
    logs.configure_directly()
    from presence import cli, processes  # noqa: F401, PLC0415 - structlog was to be loaded by the logs
    from presence.commands import timers  # noqa: F401, PLC0415 - as above
    from presence.timers import worker  # noqa: F401, PLC0415 - as above

    for line in sys.stdin:
        asked = json.loads(line)
        if "poll" in asked:
            pid, code = os.waitpid(asked["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(code) if pid else None
        elif (answer := os.fork()) == 0:
            _be(asked, cli.main)
        print(json.dumps(answer), flush=True)


def _be(asked: dict[str, Any], main: Any) -> NoReturn:
    status = 1
    try:
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd, instead in ((0, nothing), (1, nothing), (2, log)):
            os.dup2(instead, fd)
        os.environ.update(asked["env"])
        status = main(asked["argv"])
    finally:
        os._exit(status)


if __name__ == "__main__":
    _main()
