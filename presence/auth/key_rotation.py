"""Keys change while the server runs: the file is looked at every second, and whenever somebody asks.

Whatever is wrong with a new file, the keys of the last good one stay in use, and the log says so. Sessions
that live are never checked again: a key that is gone opens no login any more, and ends nobody's session
before its token does.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import structlog
import trio

from presence.auth import key_file
from presence.auth.key_file import KeyFileError
from presence.auth.keys import Keyring
from presence.common.faults import Faults
from presence.common.runtime import AbandonableThread, ThreadTimeout

LOOK_S: Final = 1.0  # between two looks; a look reads some kilobytes
log = structlog.get_logger("presence.auth")


class KeyUser(Protocol):
    """Whoever checks tokens with the keys."""

    keyring: Keyring


@dataclass(slots=True)
class RotationStatistics:
    """Counters since the start, and whether the keys in use are those of the file.

    Attributes:
        renewed: how often other keys came into use.
        failed: how often something else was wrong with the file.
        is_current: whether nothing is wrong with it now.
    """

    renewed: int = 0
    failed: int = 0
    is_current: bool = False


class _Seen(NamedTuple):
    """The keys of the last valid file, and what is wrong with the file now.

    `refused` is its present content if that is not a valid key set; None: it is parsed at the next look.
    """

    keyring: Keyring
    problem: str = ""
    refused: bytes | None = None


class KeyRotation:
    """Brings the keys of a file to whoever uses them.

    Args:
        user: who has the file's keys already.
        path: the file.
    """

    def __init__(self, user: KeyUser, path: Path) -> None:
        self._user = user
        self._path = path
        self._looking = trio.Lock()
        self._aside = AbandonableThread()
        self._seen = _Seen(user.keyring)
        self._counted = RotationStatistics()

    def statistics(self) -> RotationStatistics:
        """Return the figures."""
        return replace(self._counted, is_current=not self._seen.problem)

    async def run(self, faults: Faults) -> None:
        """Look for ever; a mistake is noted, and the keys stay as they are."""
        while True:
            with faults.contained("token keys"):
                await self.look()
            await trio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look at the file now, and have its keys used if it has changed and is sound."""
        async with self._looking:
            before = self._seen
            try:
                # Aside: the disk may be slow, and finding out what a check of RS256 costs takes a while.
                self._seen = await self._aside.call(partial(_look, self._path, before))
            except ThreadTimeout as error:
                self._seen = before._replace(problem=f"{self._path}: reading it {error}", refused=None)
            self._take(before, self._seen)

    def _take(self, before: _Seen, seen: _Seen) -> None:
        if seen.keyring is not before.keyring:
            self._user.keyring = seen.keyring
            self._tell_renewed(before.keyring, seen.keyring)
        elif seen.problem and seen.problem != before.problem:
            self._counted.failed += 1
            log.error("token key file rejected", error=seen.problem)
        elif before.problem and not seen.problem:
            log.info("token key file valid again", keys=len(seen.keyring))

    def _tell_renewed(self, before: Keyring, keyring: Keyring) -> None:
        self._counted.renewed += 1
        added, removed = sorted(keyring.kids - before.kids), sorted(before.kids - keyring.kids)
        log.info("token keys renewed", keys=len(keyring), added=added, removed=removed)


def _look(path: Path, seen: _Seen) -> _Seen:
    try:
        raw = key_file.read(path)
    except KeyFileError as error:
        return seen._replace(problem=str(error), refused=None)
    if key_file.digest(raw) == seen.keyring.digest:
        return seen._replace(problem="", refused=None)
    if raw == seen.refused:
        return seen
    try:
        return _Seen(key_file.parse(raw, path))
    except KeyFileError as error:
        return seen._replace(problem=str(error), refused=raw)
