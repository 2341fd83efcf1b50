"""What sessions show to others: their status (away or not) and the metadata that their clients set."""

from typing import NamedTuple

from presence.common.rate_limit import KeyedRateLimiter
from presence.protocol import Code

UPDATES_BURST = 10.0  # each update is written to Redis and sent to all watchers
UPDATES_PER_S = 1.0  # in the long run


class Profile(NamedTuple):
    """What a session shows to others."""

    away: bool = False
    meta: str = ""  # the client's own metadata as JSON text; "" if none. Opaque from here to the readers.


PLAIN = Profile()
_AUTO_AWAY = Profile(away=True)  # shared by all sessions that are set away automatically and have no meta


class Profiles:
    """The profiles of live sessions, by session number; a plain one takes no memory."""

    def __init__(self) -> None:
        self._shown: dict[int, Profile] = {}
        self._auto_away: set[int] = set()
        self._updates: KeyedRateLimiter[int] = KeyedRateLimiter(UPDATES_PER_S, UPDATES_BURST)

    def get(self, number: int) -> Profile:
        """Return the profile of a session."""
        return self._shown.get(number, PLAIN)

    @property
    def away(self) -> int:
        """Number of sessions that are away; O(sessions with a profile)."""
        return sum(profile.away for profile in self._shown.values())

    def admit_update(self, number: int, now: float) -> float:
        """Return 0.0 if a session may be updated now, and count that; else the seconds to wait."""
        return 0.0 if self._updates.take(number, now) else self._updates.wait_s(number, now)

    def update(self, number: int, *, away: bool | None = None, meta: str | None = None) -> Code | None:
        """Update a session's profile.

        Args:
            number: the session's.
            away: None: as the client set it last; ends auto-away.
            meta: None: unchanged.

        Returns:
            What has changed: AWAY or BACK if `away` did, else UPDATED; None if nothing has.
        """
        before = self.get(number)
        if away is None:
            away = before.away and number not in self._auto_away
        self._auto_away.discard(number)
        return self._show(number, Profile(away, before.meta if meta is None else meta))

    def set_auto_away(self, number: int) -> Code | None:
        """Set a session away because it sent nothing but keepalives; None if it is away already."""
        before = self.get(number)
        if before.away:
            return None
        self._auto_away.add(number)
        return self._show(number, Profile(away=True, meta=before.meta) if before.meta else _AUTO_AWAY)

    def clear_auto_away(self, number: int) -> Code | None:
        """End auto-away; a session whose client set it away stays away."""
        return self.update(number) if number in self._auto_away else None

    def remove(self, number: int) -> None:
        """Drop the profile of a session that has ended."""
        self._shown.pop(number, None)
        self._auto_away.discard(number)
        self._updates.drop(number)

    def _show(self, number: int, profile: Profile) -> Code | None:
        before = self.get(number)
        if profile == before:
            return None
        if profile == PLAIN:
            del self._shown[number]
        else:
            self._shown[number] = profile
        if profile.away == before.away:
            return Code.UPDATED
        return Code.AWAY if profile.away else Code.BACK
