"""The handler of a run: it writes down what it was called with, and nothing can be lost of that by a kill."""

import os
from pathlib import Path

from presence.followups import FollowUp

FOLDER = "LOADTEST_FOLLOWUPS"  # the variable that names where to


def handle(followup: FollowUp) -> None:
    """Append the follow-up's id to this process' file."""
    path = Path(os.environ[FOLDER]) / str(os.getpid())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, f"{followup.id}\n".encode())
    finally:
        os.close(descriptor)


def handled(folder: Path) -> list[str]:
    """Return the ids that all processes have written."""
    return [line for path in folder.iterdir() for line in path.read_text("utf-8").splitlines()]
