"""What was truly done, in files that outlive a kill of the process that writes them.

Touches: for each user the moment of the last one that was taken, in a shared mapping of a file. Tellings: a
line each, appended with one write. Moments are of the machine's monotonic clock, which all processes share.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

_TELLING: Final = struct.Struct("<Qdd")
_DOUBLE_BYTES: Final = 8


class Telling(NamedTuple):
    """Somebody was told to be offline.

    Attributes:
        user: number.
        at: when, monotonic.
        silent_s: how long after the begin of the last touch that was taken.
    """

    user: int
    at: float
    silent_s: float


class Ledger:
    """The files of one run.

    Args:
        folder: where they are; made by whoever comes first, taken up by those who follow.
        users: how many.

    Attributes:
        touched: for each user when the last touch that was taken began; 0 if there was none.
    """

    def __init__(self, folder: Path, users: int) -> None:
        size = users * _DOUBLE_BYTES
        with (folder / "touched").open("a+b") as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self.touched = memoryview(self._map).cast("d")
        self._told = os.open(folder / "told", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def tell(self, user: int, at: float) -> None:
        """Note that a user was told to be offline."""
        os.write(self._told, _TELLING.pack(user, at, at - self.touched[user]))

    def close(self) -> None:
        """Let the files go."""
        os.close(self._told)
        self.touched.release()
        self._map.close()


def tellings(folder: Path) -> list[Telling]:
    """Return all tellings, in the order in which they were noted."""
    return [Telling(*each) for each in _TELLING.iter_unpack((folder / "told").read_bytes())]
