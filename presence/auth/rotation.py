"""Keys change while the server runs: the file is looked at every second, and whenever somebody asks.

Whatever is wrong with a new file, the keys of the last good one stay in use, and the log says so. Sessions
that live are never checked again: a key that is gone opens no login any more, and ends nobody's session
before its token does.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import structlog
import trio

from presence.auth import key_file
from presence.auth.key_file import KeyFileError
from presence.auth.keys import Keyring

LOOK_S: Final = 1.0  # between two looks; a look reads some kilobytes
log = structlog.get_logger("presence.auth")


class KeyUser(Protocol):
    """Whoever checks tokens with the keys."""

    keyring: Keyring


@dataclass(frozen=True, slots=True)
class RotationStatistics:
    """Counters since the start, and whether the keys in use are those of the file.

    Attributes:
        renewed: how often other keys came into use.
        failed: how often something else was wrong with the file.
        is_current: whether nothing is wrong with it now.
    """

    renewed: int
    failed: int
    is_current: bool


class _Seen(NamedTuple):
    """What the file held, the keys in that, or what is wrong with it."""

    raw: bytes | None
    keyring: Keyring | None
    problem: str


class Rotation:
    """Brings the keys of a file to whoever uses them.

    Args:
        user: who has the file's keys already.
        path: the file.
    """

    def __init__(self, user: KeyUser, path: Path) -> None:
        self._user = user
        self._path = path
        self._looking = trio.Lock()
        self._seen = _Seen(None, None, "")
        self._renewed = self._failed = 0

    def statistics(self) -> RotationStatistics:
        """Return the figures."""
        return RotationStatistics(self._renewed, self._failed, not self._seen.problem)

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await trio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look at the file now, and have its keys used if it has changed and is sound."""
        async with self._looking:
            # In a thread: the disk may be slow, and finding out what a check of RS256 costs takes a while.
            before, self._seen = self._seen, await trio.to_thread.run_sync(_look, self._path, self._seen)
        self._tell(before.problem)
        if self._seen.keyring is not None and self._seen.keyring is not before.keyring:
            self._use(self._seen.keyring, is_first=before.raw is None)

    def _tell(self, before: str) -> None:
        problem = self._seen.problem
        if problem and problem != before:
            self._failed += 1
            log.error("token keys stay as they were", error=problem)

    def _use(self, keyring: Keyring, *, is_first: bool) -> None:
        before, self._user.keyring = self._user.keyring, keyring
        if is_first:  # they were loaded a moment ago
            return
        self._renewed += 1
        added, removed = sorted(keyring.kids - before.kids), sorted(before.kids - keyring.kids)
        log.info("token keys renewed", keys=len(keyring), added=added, removed=removed)


def _look(path: Path, seen: _Seen) -> _Seen:
    try:
        raw = key_file.read(path)
    except KeyFileError as error:
        return seen._replace(raw=b"", problem=str(error))  # whatever is there next is looked at anew
    if raw == seen.raw:
        return seen
    try:
        return _Seen(raw, key_file.parse(raw, path), "")
    except KeyFileError as error:
        return _Seen(raw, seen.keyring, str(error))
