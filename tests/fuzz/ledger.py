"""The records in Redis after the changes of a fuzzed engine: each change must fit the records before it.

So for each (uid, device) logins and ends alternate, except for a login that replaces another; an end or an
update names the session on record; no session ends twice, or after it was replaced. Users come online and go
offline with the first and the last of their sessions, so their transitions alternate as well.
"""

from dataclasses import dataclass
from typing import Final

from presence.core.changes import Change, Op
from presence.core.profiles import Profile
from presence.protocol import Code

_OPS: Final = {Op.LOGIN, Op.END, Op.UPDATE, Op.REGISTER}


@dataclass
class LedgerEntry:
    """A session on record; `timeout_s` is its own."""

    session: str
    profile: Profile
    timeout_s: float


class Ledger:
    """Takes changes like the outbox.

    Attributes:
        entries: the sessions on record, by user and device.
        online: the users with a session on record.
        logins, replaced, ended: counters.
    """

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], LedgerEntry] = {}
        self.online: dict[str, int] = {}
        self.logins = self.replaced = self.ended = 0
        self._seen: set[str] = set()

    def append(self, change: Change) -> None:
        """Check one change and apply it."""
        assert change.op in _OPS, f"{change.op} never comes from the engine"
        assert change.at_ms >= change.last_seen_ms
        key = (change.uid, change.device)
        entry = self.entries.get(key)
        if change.op is Op.LOGIN:
            self._login(key, entry, change)
            return
        assert entry is not None, f"{change.op} of a device without a session"
        assert entry.session == change.session, f"{change.op} of a session that is no longer the device's"
        if change.op is Op.END:
            self._end(key, change)
        elif change.op is Op.UPDATE:
            self._update(entry, change)
        else:
            assert change.profile == entry.profile
            assert change.code == Code.RETURNED

    def _login(self, key: tuple[str, str], entry: LedgerEntry | None, change: Change) -> None:
        assert change.session not in self._seen, "a session's id is used twice"
        assert change.code == Code.LOGIN
        self._seen.add(change.session)
        self.logins += 1
        if entry is None:
            self.online[change.uid] = self.online.get(change.uid, 0) + 1
        else:
            self.replaced += 1
        self.entries[key] = LedgerEntry(change.session, change.profile, change.idle_timeout_ms / 1000)

    def _end(self, key: tuple[str, str], change: Change) -> None:
        assert change.grace_ms >= 0
        del self.entries[key]
        self.ended += 1
        self.online[change.uid] -= 1
        if not self.online[change.uid]:
            del self.online[change.uid]

    def _update(self, entry: LedgerEntry, change: Change) -> None:
        before, after = entry.profile, change.profile
        assert before != after, "an update that changes nothing"
        was_away, is_away = before.status == "away", after.status == "away"
        if was_away == is_away:
            assert change.code == Code.UPDATED
        else:
            assert change.code == (Code.AWAY if is_away else Code.BACK)
        entry.profile = after
