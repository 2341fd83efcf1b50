"""Threads that the system may refuse to start, at a limit of processes or of memory."""

import errno
import threading


class NoThread(OSError):
    """The system starts no further thread.

    Python raises a `RuntimeError`, which callers that survive a lack of descriptors or memory do not expect.
    """


def start(thread: threading.Thread) -> None:
    """Start a thread; raises `NoThread`."""
    try:
        thread.start()
    except RuntimeError as error:
        raise NoThread(errno.EAGAIN, str(error)) from error
