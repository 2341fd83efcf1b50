"""What others are shown of sessions beside that they live: pure, and nothing where there is nothing to show.

A session is away because its client says so, and then until it says otherwise; or by itself, after a time
with nothing but keepalives, and then until it sends anything else.
"""

from presence.buckets import Buckets
from presence.changes import PLAIN, Profile
from protocol import Code

UPDATES_AT_ONCE = 10.0  # what people do in a hurry; each is written to Redis and told to all who watch
UPDATES_PER_S = 1.0  # in the long run
_DOZING = Profile(away=True)  # one for all who are away by themselves and say nothing of themselves


class Profiles:
    """The profiles of live sessions, by session number; a plain one takes no memory."""

    def __init__(self) -> None:
        self._shown: dict[int, Profile] = {}
        self._dozing: set[int] = set()
        self._updates: Buckets[int] = Buckets(UPDATES_PER_S, UPDATES_AT_ONCE)

    def of(self, number: int) -> Profile:
        """Return what is shown of a session."""
        return self._shown.get(number, PLAIN)

    @property
    def away(self) -> int:
        """How many sessions are away; O(those that are or that say something of themselves)."""
        return sum(profile.away for profile in self._shown.values())

    def admit(self, number: int, now: float) -> float:
        """Return 0.0 if a session may be updated now, and count that; else the seconds to wait."""
        return 0.0 if self._updates.take(number, now) else self._updates.lack_s(number, now)

    def update(self, number: int, *, away: bool | None = None, meta: str | None = None) -> Code | None:
        """Show a session as its client wishes; None: leave that as it is, or end its being away by itself.

        Returns:
            What has changed: AWAY or BACK where that did, else UPDATED; None if nothing has.
        """
        before = self.of(number)
        if away is None:
            away = before.away and number not in self._dozing
        self._dozing.discard(number)
        return self._show(number, Profile(away, before.meta if meta is None else meta))

    def doze(self, number: int) -> Code | None:
        """A session has sent nothing but keepalives for long: it is away by itself, if it is not already."""
        before = self.of(number)
        if before.away:
            return None
        self._dozing.add(number)
        return self._show(number, Profile(away=True, meta=before.meta) if before.meta else _DOZING)

    def wake(self, number: int) -> Code | None:
        """A session has sent something else; a session that is away because it said so stays away."""
        return self.update(number) if number in self._dozing else None

    def forget(self, number: int) -> None:
        """A session has ended."""
        self._shown.pop(number, None)
        self._dozing.discard(number)
        self._updates.drop(number)

    def _show(self, number: int, profile: Profile) -> Code | None:
        before = self.of(number)
        if profile == before:
            return None
        if profile == PLAIN:
            del self._shown[number]
        else:
            self._shown[number] = profile
        if profile.away == before.away:
            return Code.UPDATED
        return Code.AWAY if profile.away else Code.BACK
