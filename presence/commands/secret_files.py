"""Files with secrets, written so that nobody else ever sees them, and their readers never see half of one."""

import os
import secrets
import stat
from pathlib import Path
from typing import Final

SECRET_MODE: Final = 0o600
OTHERS: Final = 0o007


def replace_file(path: Path, text: str, mode: int) -> None:
    """Write a file in one go as its readers see it, with owner and mode as they were.

    Args:
        path: the file.
        text: what it is to hold.
        mode: for a file that is not there; where others may not read that, they never may.

    Raises:
        OSError: it cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET_MODE)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            if path.exists():
                before = path.stat()
                mode = stat.S_IMODE(before.st_mode) & (mode | ~OTHERS)
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
