"""Files that are opened at once, or not at all.

To open a FIFO waits for whoever writes it, and to read one, or a terminal, waits for what he writes: a server
that reads a file while it runs would hang at it.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def opened(path: Path) -> BinaryIO:
    """Open a file to be read.

    Raises:
        OSError: it cannot be opened, or is a directory, a FIFO, a device.
    """
    fd = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return os.fdopen(fd, "rb")
