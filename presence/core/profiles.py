"""Profiles of sessions: what they show, with the facts of their logins (see `event_facts`).

What a user hides belongs to the user, and Redis has it: a `Privacy`. The profile of a session has a copy,
which notices keep up to date: to hide the user here immediately, and to register it if Redis loses its data.
"""

from typing import Final, NamedTuple, TypeAlias

from presence.common.rate_limit import KeyedRateLimiter
from presence.core.event_facts import NO_FACTS, LoginFacts
from presence.protocol import Code
from presence.protocol.constants import Status

Privacy: TypeAlias = str
"""What a user hides: `INVISIBLE` and `NO_LAST_SEEN`, in this order, where they apply; "" if nothing."""

PrivacyChange: TypeAlias = str
"""What a user hides from now on, and no more: each with a sign before it, as in ``+i-l``; "" if the same."""

INVISIBLE: Final = "i"  # that they are online
NO_LAST_SEEN: Final = "l"  # when they were active

UPDATES_BURST = 10.0  # each update is written to Redis and sent to all watchers
UPDATES_PER_S = 1.0  # in the long run


class Profile(NamedTuple):
    """What events tell of a session; `meta` and `private` are the client's JSON, opaque up to the readers."""

    status: Status = "online"
    meta: str = ""  # for everybody; "" if none
    private: str = ""  # for the application's backend only
    facts: LoginFacts = NO_FACTS
    privacy: Privacy = ""  # of the user, as this node knows it
    rooms: str = ""  # names of rooms in the order of their bytes, with a space between two; "" if none

    @property
    def is_invisible(self) -> bool:
        """Whether the session makes its user invisible, or the user is."""
        return self.status == "invisible" or INVISIBLE in self.privacy

    @property
    def texts(self) -> tuple[str, ...]:
        """Status and privacy apart, all, in the order of TEXTS in `store/scripts/lib/event_texts.lua`."""
        return (self.meta, self.private, *self.facts, self.rooms)


class ProfileChange(NamedTuple):
    """What a login or an update sets of what a session shows; None: unchanged."""

    status: Status | None = None
    until_ms: int | None = None  # Unix milliseconds at which the status from before is back; None: never
    meta: str | None = None
    private: str | None = None
    privacy: PrivacyChange = ""
    rooms: str | None = None  # as in a profile


PLAIN = Profile()
UNCHANGED: Final = ProfileChange()
_AUTO_AWAY = Profile("away")  # shared by all sessions that are set away automatically and have no meta


def _changed(privacy: Privacy, change: PrivacyChange) -> Privacy:
    """Return what a user hides after a change."""
    if not change:
        return privacy
    hidden = (each for each in (INVISIBLE, NO_LAST_SEEN) if f"+{each}" in change or each in privacy)
    return "".join(each for each in hidden if f"-{each}" not in change)


class Profiles:
    """The profiles of live sessions, by session number; a plain one takes no memory."""

    def __init__(self) -> None:
        self._shown: dict[int, Profile] = {}
        self._auto_away: set[int] = set()
        self._returns_to: dict[int, Status] = {}  # the status that follows one with an end
        self._updates: KeyedRateLimiter[int] = KeyedRateLimiter(UPDATES_PER_S, UPDATES_BURST)
        self.in_rooms = 0  # number of sessions that are in a room

    def get(self, number: int) -> Profile:
        return self._shown.get(number, PLAIN)

    @property
    def away(self) -> int:
        """Number of sessions that are away; O(sessions with a profile)."""
        return sum(profile.status == "away" for profile in self._shown.values())

    def admit_update(self, number: int, now: float) -> float:
        """Return 0.0 if a session may be updated now, and count that; else the seconds to wait."""
        return 0.0 if self._updates.take(number, now) else self._updates.wait_s(number, now)

    def note_login(self, number: int, facts: LoginFacts) -> None:
        """Keep the facts of the login of a session, which has no profile yet."""
        self._show(number, Profile(facts=facts))

    def update(self, number: int, change: ProfileChange = UNCHANGED) -> Code | None:
        """Update a session's profile; ends auto-away. After a status with an end `end_status` follows.

        Returns:
            What has changed: AWAY or BACK if the session went away or came back, else UPDATED; None: nothing.
        """
        before = self.get(number)
        set_before: Status = "online" if number in self._auto_away else before.status
        self._auto_away.discard(number)
        status, until_ms, meta, private, privacy_change, rooms = change
        if f"+{INVISIBLE}" in privacy_change and set_before == "invisible":
            status = "online"  # that of the user takes its place: it could not be taken back otherwise
        if status is not None and until_ms is not None:
            self._returns_to.setdefault(number, set_before)
        elif status is not None:
            self._returns_to.pop(number, None)
        meta = before.meta if meta is None else meta
        private = before.private if private is None else private
        privacy = _changed(before.privacy, privacy_change)
        rooms = before.rooms if rooms is None else rooms
        return self._show(number, Profile(status or set_before, meta, private, before.facts, privacy, rooms))

    def set_rooms(self, number: int, rooms: str) -> Code | None:
        """Set a session's rooms, which its client has not asked for: auto-away goes on."""
        return self._show(number, self.get(number)._replace(rooms=rooms))

    def note_privacy(self, number: int, privacy: Privacy) -> None:
        """Note what the user of a session hides, as Redis has it."""
        known = "".join(each for each in (INVISIBLE, NO_LAST_SEEN) if each in privacy)
        self._show(number, self.get(number)._replace(privacy=known))

    def end_status(self, number: int) -> Code | None:
        """End a status that has an end: the one from before is back."""
        before = self._returns_to.pop(number, None)
        return None if before is None else self.update(number, ProfileChange(before))

    def set_auto_away(self, number: int) -> Code | None:
        """Set a session away because it sent nothing but keepalives; None if it is not online."""
        before = self.get(number)
        if before.status != "online":
            return None
        self._auto_away.add(number)
        return self._show(number, _AUTO_AWAY if before is PLAIN else before._replace(status="away"))

    def clear_auto_away(self, number: int) -> Code | None:
        """End auto-away; a session whose client set it away stays away."""
        return self.update(number) if number in self._auto_away else None

    def remove(self, number: int) -> None:
        self.in_rooms -= bool(self._shown.pop(number, PLAIN).rooms)
        self._auto_away.discard(number)
        self._returns_to.pop(number, None)
        self._updates.drop(number)

    def _show(self, number: int, profile: Profile) -> Code | None:
        before = self.get(number)
        if profile == before:
            return None
        if profile == PLAIN:
            del self._shown[number]
        else:
            self._shown[number] = profile
        self.in_rooms += bool(profile.rooms) - bool(before.rooms)
        if (profile.status == "away") == (before.status == "away"):
            return Code.UPDATED
        return Code.AWAY if profile.status == "away" else Code.BACK
