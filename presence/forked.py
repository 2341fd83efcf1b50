"""A question that may take for ever, asked in a child of this process, which is not waited for for so long.

For a process that must have one thread, since it forks. The child has nothing of ours but its end of a pipe:
it may outlive us, stuck, and must keep no line open that others watch.
"""

import os
import select
import signal
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 10.0
_ANSWER_FD: Final = 3  # the first behind the standard ones


class NoAnswer(Exception):
    """The child takes too long, or has died."""


def ask(question: Callable[[], str]) -> str:
    """Return what a function returns in a child process; its first 4 KiB, which a pipe takes in one piece.

    Raises:
        NoAnswer: there is none.
        OSError: there is no room for one more process, or file.
    """
    reader, writer = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            _answer(question, writer)
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    ready: list[int] = []
    try:
        ready, _, _ = select.select([reader], [], [], PATIENCE_S)
        said = os.read(reader, select.PIPE_BUF) if ready else b""
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0 if ready else os.WNOHANG)  # what a disk holds may not even die
    if not said:
        raise NoAnswer
    return said[1:].decode("utf-8", "replace")


def _answer(question: Callable[[], str], writer: int) -> None:
    """Be the child."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(writer, _ANSWER_FD)
        os.closerange(_ANSWER_FD + 1, os.sysconf("SC_OPEN_MAX"))
        answer = b"=" + question().encode("utf-8", "replace")  # never empty, as a child's death is
        os.write(_ANSWER_FD, answer[: select.PIPE_BUF])
    finally:
        os._exit(0)
