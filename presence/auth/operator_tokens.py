"""The file of operators' tokens: which operators may read, which may act, and their names for the log.

A line is ``ROLE NAME SECRET``; empty lines and lines that begin with ``#`` are skipped. One invalid line
makes the file invalid; the message names the line and shows none of it. Only a hash of each secret is kept.
"""

import hashlib
import hmac
import re
import secrets
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from presence.common import files

Role: TypeAlias = Literal["read", "act"]
ROLES: Final[tuple[Role, ...]] = ("read", "act")
MAX_FILE_BYTES: Final = 65_536
MAX_TOKENS: Final = 200  # each is compared with an offered secret
MIN_SECRET_CHARS: Final = 16
MAX_SECRET_CHARS: Final = 256
SECRET_BYTES: Final = 24  # of a new one: 32 characters
MAX_NAME_CHARS: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*", re.ASCII)
_SECRET: Final = re.compile(r"[!-~]+", re.ASCII)


class TokenFileError(Exception):
    """The file yields no tokens; the message names file and line and shows no secret."""


class OperatorToken(NamedTuple):
    role: Role  # ``read``, or ``act``, which includes reading
    name: str  # for the log
    digest: bytes  # SHA-256 of the secret


class Tokens:
    """The tokens of a file; none without a usable file."""

    def __init__(self, tokens: tuple[OperatorToken, ...]) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def find(self, secret: str) -> OperatorToken | None:
        """Return the token with this secret; the time it takes reveals nothing about any secret."""
        offered = _digest(secret)
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, offered):
                found = token
        return found


def load(path: Path) -> Tokens:
    """Return the tokens of a file.

    Raises:
        TokenFileError: it cannot be read without blocking, its permissions are too open, or it is invalid.
    """
    try:
        raw = files.read_secret_file(path, MAX_FILE_BYTES)
    except files.SecretFileError as error:
        raise TokenFileError(str(error)) from None
    return parse(raw, path)


def parse(raw: bytes, path: Path) -> Tokens:
    """Return the tokens that a file holds.

    Raises:
        TokenFileError: a line is invalid, or there is no token.
    """
    tokens: dict[bytes, OperatorToken] = {}
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            token = _token(line.split())
        except ValueError as error:
            raise TokenFileError(f"{path}: line {number}: {error}") from None
        if token.digest in tokens:
            raise TokenFileError(f"{path}: line {number}: another line has this secret")
        tokens[token.digest] = token
    if not tokens:
        raise TokenFileError(f"{path}: holds no token: presence token admin makes one")
    if len(tokens) > MAX_TOKENS:
        raise TokenFileError(f"{path}: holds more than {MAX_TOKENS} tokens")
    return Tokens(tuple(tokens.values()))


def make_line(role: Role, name: str) -> str:
    """Return a line with a new secret.

    Raises:
        ValueError: the name is invalid.
    """
    line = f"{role} {name} {secrets.token_urlsafe(SECRET_BYTES)}"
    _token(line.split(" "))
    return line


def _token(words: list[str]) -> OperatorToken:
    if len(words) != 3:
        raise ValueError("must be ROLE NAME SECRET")
    role, name, secret = words
    if role not in ROLES:
        raise ValueError(f"ROLE must be one of {', '.join(ROLES)}")
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARS:
        raise ValueError(f"NAME must be letters, digits and ._@- of ASCII, at most {MAX_NAME_CHARS}")
    if not _SECRET.fullmatch(secret) or not MIN_SECRET_CHARS <= len(secret) <= MAX_SECRET_CHARS:
        raise ValueError(
            f"SECRET must be {MIN_SECRET_CHARS} to {MAX_SECRET_CHARS} characters of ASCII that can be printed"
        )
    return OperatorToken("act" if role == "act" else "read", name, _digest(secret))


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
