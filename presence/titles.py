"""Secrets out of the list of processes.

Whatever stands on a command line can be read by every user of the machine for as long as the process lives.
Secrets belong into files or variables; one that comes as an argument all the same is overwritten where the
kernel shows it from, in this process and whatever it forks later. Linux only.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final

from presence.redaction import REDACTED, redact_text

_SECRET_FLAGS: Final = ("--token",)
_FROM_FILE: Final = "@"  # what such an argument begins with where it only names a file
# Of /proc/self/stat, counted from what follows the name: where the arguments begin in memory, and their end.
_ARGUMENTS_START: Final = 45
_ARGUMENTS_END: Final = 46


def hide(arguments: Sequence[str]) -> bool:
    """Overwrite secrets among the arguments of this process.

    Args:
        arguments: as `sys.argv` has them.

    Returns:
        False if there are some, and everybody can go on reading them.
    """
    if covered(arguments) == [*arguments]:
        return True
    try:
        _overwrite()
    except (OSError, ValueError, IndexError):
        return False
    return True


def covered(arguments: Sequence[str]) -> list[str]:
    """Return arguments with ``***`` in the place of tokens and of passwords in URLs."""
    found = []
    before = ""
    for each in arguments:
        flag, equals, value = each.partition("=")
        if before in _SECRET_FLAGS:
            found.append(_covered(each))
        elif equals and flag in _SECRET_FLAGS:
            found.append(f"{flag}={_covered(value)}")
        else:
            found.append(redact_text(each))
        before = each
    return found


def _covered(value: str) -> str:
    return value if value.startswith(_FROM_FILE) else REDACTED


def _overwrite() -> None:
    """Write the covered arguments over the others; each keeps its length, so that nothing else moves."""
    if not sys.platform.startswith("linux"):
        raise OSError("no way is known here")
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    start, end = int(fields[_ARGUMENTS_START]), int(fields[_ARGUMENTS_END])
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        words = memory.read(end - start).split(b"\0")
        texts = [os.fsdecode(word) for word in words]
        masked = [os.fsencode(text) for text in covered(texts)]
        same = [new[: len(old)].ljust(len(old)) for old, new in zip(words, masked, strict=True)]
        memory.seek(start)
        memory.write(b"\0".join(same))
