"""``presence token admin``: a token for an operator of the HTTP interface."""

from pathlib import Path

from presence.admin import token_file
from presence.admin.token_file import Role, TokenFileError
from presence.commands.outcome import FAILED, OK, USAGE, complain
from presence.commands.secret_files import SECRET_MODE, replace_file


def run(role: Role, name: str, into: Path | None) -> int:
    """Print a line with a fresh secret, or add it to a file; return the exit status."""
    try:
        line = token_file.make_line(role, name)
    except ValueError as error:
        complain(f"token admin: {error}")
        return USAGE
    if into is None:
        print(line)
        return OK
    try:
        before = _sound_text(into) if into.exists() else ""
        replace_file(into, f"{before}{line}\n", SECRET_MODE)
    except (TokenFileError, OSError) as error:
        complain(f"token admin: {error}")
        return FAILED
    print(f"{role} {name}")
    return OK


def _sound_text(path: Path) -> str:
    """Return what a file of tokens holds, ending with a line's end.

    Raises:
        TokenFileError: no server would take it; then nothing is added to it.
        OSError: it cannot be read.
    """
    text = path.read_text("utf-8", "replace")
    if text.strip():
        token_file.load(path)
    return text if not text or text.endswith("\n") else f"{text}\n"
