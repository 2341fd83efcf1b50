"""Which errors mean that the machine lacks something, rather than that the program is wrong.

Python reports a lack of memory as `MemoryError`, of threads as `RuntimeError`, of descriptors, processes and
disk space as `OSError`, and of any of them during an import as `ImportError`.
"""

import errno
import os
from typing import Any, Final

_REMEDIES: Final = {
    errno.EMFILE: "a higher limit of open files (ulimit -n) is needed",
    errno.ENFILE: "the machine has no further file to open",
    errno.EAGAIN: "a higher limit of processes and threads (ulimit -u, TasksMax) is needed",
    errno.ENOMEM: "more memory is needed",
    errno.ENOBUFS: "more memory is needed",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "a higher quota is needed",
}
_NO_THREAD: Final = "can't start new thread"  # CPython's, without an error number
# CPython's, where an allocation fails in an import
_NO_ERROR_SET: Final = ("error return without exception set", "returned NULL without setting an exception")
_NO_MAPPING: Final = "failed to map segment"  # the loader's of a shared library


def scarcity(error: BaseException) -> str:
    """Return in one line what is lacking, or "" if the error has another cause.

    Args:
        error: of a group of errors, each must have such a cause.
    """
    if isinstance(error, BaseExceptionGroup):
        found = [scarcity(each) for each in error.exceptions]
        return found[0] if all(found) else ""
    if isinstance(error, MemoryError) or (
        isinstance(error, SystemError) and str(error).endswith(_NO_ERROR_SET)
    ):
        return f"out of memory: {_REMEDIES[errno.ENOMEM]}"
    if isinstance(error, OSError) and error.errno in _REMEDIES and not _is_full_output(error):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror}: {_REMEDIES[error.errno]}"
    number = _number_in(error)
    return f"{error}: {_REMEDIES[number]}" if number else ""


def fault_fields(error: BaseException) -> dict[str, Any]:
    """Return the log fields of a fault: what is lacking, in one line, or else the traceback."""
    lack = scarcity(error)
    return {"error": lack} if lack else {"exc_info": error}


def _is_full_output(error: OSError) -> bool:
    """Whether Python could not write because the reader of a pipe that does not wait is slow.

    The kernel gives this the number of a lack of processes.
    """
    return hasattr(error, "characters_written")


def _number_in(error: BaseException) -> int:
    """Return the error number that the text of an error without one means; 0 if it means none."""
    text = str(error)
    if isinstance(error, RuntimeError):
        return errno.EAGAIN if text == _NO_THREAD else 0
    if not isinstance(error, ImportError):
        return 0
    named = (number for number in _REMEDIES if os.strerror(number) in text)
    return next(named, errno.ENOMEM if _NO_MAPPING in text else 0)
