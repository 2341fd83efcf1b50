"""The bans that this process knows: users, or single devices, whom operators keep out.

Redis has them, and `presence.server.ban_enforcer` gives the login policy a new list when they change. A login
looks its user up in one table; while there are no bans, not even that.
"""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from presence import protocol
from presence.core.authenticator import Refusal
from presence.protocol import Code

# The longest time that a client is told to wait: timers of some clients hold no more than 24 days, and a user
# whose ban was lifted should not wait for all of it.
MAX_RETRY_AFTER_S: Final = 86_400
NO_REASON: Final = "an operator has banned this user"


class Ban(NamedTuple):
    uid: str
    device: str | None  # "" for the default device; None: all devices
    ends_at: float  # monotonic seconds; infinite: it has no end
    reason: str  # the operator's; "" if none was given

    def refusal(self, now: float) -> Refusal:
        retry_after = None
        if self.ends_at < math.inf:
            retry_after = min(MAX_RETRY_AFTER_S, max(1, math.ceil(self.ends_at - now)))
        return Refusal(Code.BANNED, self.reason or NO_REASON, retry_after)

    def goodbye(self, now: float) -> bytes:
        """Return the goodbye to the client of a session that the ban ends."""
        return protocol.encode(protocol.goodbye(*self.refusal(now)))


class BanList:
    """All bans that are known, those that have just ended included; it never changes.

    `bans`: at most one for each user and device.
    """

    def __init__(self, bans: Iterable[Ban] = ()) -> None:
        self.all = tuple(bans)
        self._by_uid: dict[str, dict[str | None, Ban]] = {}
        for each in self.all:
            self._by_uid.setdefault(each.uid, {})[each.device] = each

    def __len__(self) -> int:
        return len(self.all)

    def find(self, uid: str, device: str, now: float) -> Ban | None:
        """Return the ban that keeps out a device of a user: of two, the one that ends later."""
        bans = self._by_uid.get(uid)
        if bans is None:
            return None
        found = [each for which in (None, device) if (each := bans.get(which)) and each.ends_at > now]
        return max(found, key=lambda ban: ban.ends_at) if found else None
