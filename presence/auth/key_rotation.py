"""Key rotation while the server runs: the file is checked every second, and on request.

If a new file is invalid, the keys of the last valid one stay in use, and the log reports it. Live sessions
are never checked again: a removed key allows no more logins, and ends no session before its token expires.
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

POLL_INTERVAL_S: Final = 1.0  # a check reads some kilobytes
log = structlog.get_logger("presence.auth")


class KeyUser(Protocol):
    """The authenticator that uses the keys."""

    keyring: Keyring


@dataclass(slots=True)
class RotationStatistics:
    """Counters since the start, and whether the keys in use are those of the file."""

    renewed: int = 0  # how often the keys in use were replaced
    failed: int = 0  # how often the file became invalid, or invalid in another way
    is_current: bool = False  # whether it is valid now


class _FileState(NamedTuple):
    """The keys of the last valid file, and what is wrong with the file now.

    `refused` is its present content if that is not a valid key set; None: it is parsed at the next check.
    """

    keyring: Keyring
    problem: str = ""
    refused: bytes | None = None


class KeyRotation:
    """Keeps an authenticator, which has the keys of a file, supplied with the present ones."""

    def __init__(self, user: KeyUser, path: Path) -> None:
        self._user = user
        self._path = path
        self._poll_lock = trio.Lock()
        self._thread = AbandonableThread()
        self._state = _FileState(user.keyring)
        self._counters = RotationStatistics()

    def statistics(self) -> RotationStatistics:
        """Return the counters."""
        return replace(self._counters, is_current=not self._state.problem)

    async def run(self, faults: Faults) -> None:
        """Check the file until cancelled; an error is logged, and the keys stay as they are."""
        while True:
            with faults.contained("token keys"):
                await self.poll()
            await trio.sleep(POLL_INTERVAL_S)

    async def poll(self) -> None:
        """Check the file now, and use its keys if it has changed and is valid."""
        async with self._poll_lock:
            before = self._state
            try:
                # In a thread: the disk may be slow, and measuring the cost of an RS256 check takes a while.
                self._state = await self._thread.call(partial(_read_file, self._path, before))
            except ThreadTimeout as error:
                self._state = before._replace(problem=f"{self._path}: reading it {error}", refused=None)
            self._apply(before, self._state)

    def _apply(self, before: _FileState, state: _FileState) -> None:
        if state.keyring is not before.keyring:
            self._user.keyring = state.keyring
            self._log_renewed(before.keyring, state.keyring)
        elif state.problem and state.problem != before.problem:
            self._counters.failed += 1
            log.error("token key file rejected", error=state.problem)
        elif before.problem and not state.problem:
            log.info("token key file valid again", keys=len(state.keyring))

    def _log_renewed(self, before: Keyring, keyring: Keyring) -> None:
        self._counters.renewed += 1
        added, removed = sorted(keyring.kids - before.kids), sorted(before.kids - keyring.kids)
        log.info("token keys renewed", keys=len(keyring), added=added, removed=removed)


def _read_file(path: Path, state: _FileState) -> _FileState:
    try:
        raw = key_file.read(path)
    except KeyFileError as error:
        return state._replace(problem=str(error), refused=None)
    if key_file.digest(raw) == state.keyring.digest:
        return state._replace(problem="", refused=None)
    if raw == state.refused:
        return state
    try:
        return _FileState(key_file.parse(raw, path))
    except KeyFileError as error:
        return state._replace(problem=str(error), refused=raw)
