"""Key rotation while the server runs: the key set is read repeatedly, on request, and for unknown keys.

If a new set is invalid or cannot be read, the keys of the last valid one stay in use, and the log reports it.
Live sessions are never checked again: a removed key allows no more logins, and ends no session before its
token expires.

A token may name a key that was published after the last read. Its login is refused immediately, with a time
to retry, and the set is read again, at most once in `retry_s` however many such tokens come. Nothing is kept
of them: whether a retry can succeed follows from the age of the token, which comes with every retry.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import structlog
import trio

from presence.auth import key_file
from presence.auth.signing_keys import Keyring, KeySetError
from presence.common.backoff import jittered
from presence.common.faults import Faults
from presence.common.rate_limit import RETRY_MIN_S, spread
from presence.common.runtime import AbandonableThread, ThreadTimeout, TrioWakeEvent

POLL_INTERVAL_S: Final = 1.0  # of a file: a check reads some kilobytes
log = structlog.get_logger("presence.auth")


class KeyUser(Protocol):
    """The authenticator that uses the keys."""

    keyring: Keyring


class KeySource(Protocol):
    """Where the keys come from: a file or a URL, which all messages begin with.

    Attributes:
        interval_s: seconds between two reads.
        retry_s: seconds after a read until the next one, if it failed or a token names an unknown key.
    """

    interval_s: float
    retry_s: float

    def initial(self) -> Keyring:
        """Return the keys to start with, which may be none; blocks.

        Raises:
            KeySetError: the server must not start.
        """

    async def read(self) -> bytes:
        """Return the key set as it is now.

        Raises:
            KeySetError: it cannot be read.
        """

    def parse(self, raw: bytes) -> Keyring:
        """Return the keys of a set; takes up to a millisecond per key.

        Raises:
            KeySetError: it is invalid.
        """


class KeyFile:
    """Keys from a file of this machine, a `KeySource`."""

    interval_s = retry_s = POLL_INTERVAL_S

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = AbandonableThread()

    def initial(self) -> Keyring:
        return key_file.load(self._path)

    async def read(self) -> bytes:
        """Read in a thread, because the disk may be slow."""
        try:
            return await self._thread.call(partial(key_file.read, self._path))
        except ThreadTimeout as error:
            raise KeySetError(f"{self._path}: reading it {error}") from None

    def parse(self, raw: bytes) -> Keyring:
        return key_file.parse(raw, self._path)


@dataclass(slots=True)
class RotationStatistics:
    """Counters since the start, and whether the keys in use are those of the source."""

    renewed: int = 0  # how often the keys in use were replaced
    failed: int = 0  # how often the source became invalid or unreachable, or in another way
    is_current: bool = False  # whether it was valid when it was last read
    ignored: int = 0  # entries of its set that are no keys for tokens


class _State(NamedTuple):
    """The last valid keys, and what is wrong with the source now.

    `refused` is its present content if that is not a valid key set; None: it is parsed at the next read.
    """

    keyring: Keyring
    problem: str = ""
    refused: bytes | None = None


class KeyRotation:
    """Keeps an authenticator, which has the initial keys of a source, supplied with the present ones."""

    def __init__(self, user: KeyUser, source: KeySource) -> None:
        self._user = user
        self._source = source
        self._poll_lock = trio.Lock()
        self._thread = AbandonableThread()
        self._state = _State(user.keyring, "" if len(user.keyring) else "not read yet")
        self._counters = RotationStatistics()
        self._wanted = TrioWakeEvent()
        self._next_at = self._valid_at = -math.inf

    def statistics(self) -> RotationStatistics:
        state = self._state
        return replace(self._counters, is_current=not state.problem, ignored=state.keyring.ignored)

    async def run(self, faults: Faults) -> None:
        """Read the keys repeatedly until cancelled; an error is logged, and the keys stay as they are."""
        while True:
            await trio.sleep_until(self._next_at)
            if not self._state.problem:
                await self._wanted.wait(jittered(self._source.interval_s) - self._source.retry_s)
            with faults.contained("token keys"):
                await self.poll()

    async def poll(self) -> None:
        """Read the keys now, and use them if they have changed and are valid."""
        async with self._poll_lock:
            before, begun = self._state, trio.current_time()
            try:
                self._state = await self._read(before)
            except KeySetError as error:
                self._state = before._replace(problem=str(error), refused=None)
            finally:
                self._next_at = begun + self._source.retry_s
            if not self._state.problem:
                self._valid_at = begun
            self._apply(before, self._state)

    def request(self, token_age_s: float | None) -> float | None:
        """Read the keys soon, because a token names an unknown one; return in how many seconds to retry.

        None: the keys were read `retry_s` or more after the token was issued, so no key of it will appear.
        Without an age a token is one for which they were, if that was within the last `retry_s`.
        """
        now, retry_s = trio.current_time(), self._source.retry_s
        if token_age_s is None:
            token_age_s = 2 * retry_s
        if token_age_s - (now - self._valid_at) >= retry_s:
            return None
        self._wanted.set()
        earliest_s = max(0.0, self._next_at - now) + RETRY_MIN_S
        return spread(earliest_s, earliest_s + RETRY_MIN_S)

    async def _read(self, state: _State) -> _State:
        raw = await self._source.read()
        if key_file.digest(raw) == state.keyring.digest:
            return state._replace(problem="", refused=None)
        if raw == state.refused:
            return state
        try:
            # In a thread, because measuring the cost of checks takes a while.
            return _State(await self._thread.call(partial(self._source.parse, raw)))
        except KeySetError as error:
            return state._replace(problem=str(error), refused=raw)
        except ThreadTimeout as error:
            raise KeySetError(f"checking the keys {error}") from None

    def _apply(self, before: _State, state: _State) -> None:
        if state.keyring is not before.keyring:
            self._user.keyring = state.keyring
            self._log_renewed(before.keyring, state.keyring)
        elif state.problem and state.problem != before.problem:
            self._counters.failed += 1
            log.error("token keys rejected", error=state.problem)
        elif before.problem and not state.problem:
            log.info("token keys valid again", keys=len(state.keyring))

    def _log_renewed(self, before: Keyring, keyring: Keyring) -> None:
        self._counters.renewed += 1
        added, removed = sorted(keyring.kids - before.kids), sorted(before.kids - keyring.kids)
        log.info(
            "token keys renewed", keys=len(keyring), added=added, removed=removed, ignored=keyring.ignored
        )
