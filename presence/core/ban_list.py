"""The bans that this process knows: users, single devices, or addresses, that operators keep out.

Redis has them, and `presence.server.ban_enforcer` gives the login policy a new list when they change. A login
looks its user up in one table, a connection its address in one for each length of prefix; while there are no
bans, not even that.
"""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from presence import protocol
from presence.common.networks import Network, NetworkMap
from presence.core.authenticator import Refusal
from presence.protocol import Code

# The longest time that a client is told to wait: timers of some clients hold no more than 24 days, and a user
# whose ban was lifted should not wait for all of it.
MAX_RETRY_AFTER_S: Final = 86_400
NO_REASON: Final = "an operator has banned this user"
NO_REASON_FOR_ADDRESS: Final = "an operator has banned this address"


class Ban(NamedTuple):
    uid: str
    device: str | None  # "" for the default device; None: all devices
    ends_at: float  # monotonic seconds; infinite: it has no end
    reason: str  # the operator's; "" if none was given

    def refusal(self, now: float) -> Refusal:
        return _refusal(self.ends_at, self.reason or NO_REASON, now)

    def goodbye(self, now: float) -> bytes:
        """Return the goodbye to the client of a session that the ban ends."""
        return protocol.encode(protocol.goodbye(*self.refusal(now)))


class AddressBan(NamedTuple):
    network: Network  # of IPv6 at least 64 bits of host: clients of a home or a phone have all of them
    ends_at: float  # as of a `Ban`
    reason: str

    def refusal(self, now: float) -> Refusal:
        return _refusal(self.ends_at, self.reason or NO_REASON_FOR_ADDRESS, now)

    def goodbye(self, now: float) -> bytes:
        """Return the goodbye to the client of a session that the ban ends."""
        return protocol.encode(protocol.goodbye(*self.refusal(now)))


def _refusal(ends_at: float, reason: str, now: float) -> Refusal:
    retry_after = None
    if ends_at < math.inf:
        retry_after = min(MAX_RETRY_AFTER_S, max(1, math.ceil(ends_at - now)))
    return Refusal(Code.BANNED, reason, retry_after)


class BanList:
    """All bans that are known, those that have just ended included; it never changes.

    `bans`: at most one for each user and device; `addresses`: at most one for each network.
    """

    def __init__(self, bans: Iterable[Ban] = (), addresses: Iterable[AddressBan] = ()) -> None:
        self.all = tuple(bans)
        self.addresses = tuple(addresses)
        self._by_network = NetworkMap((each.network, each) for each in self.addresses)
        self._by_uid: dict[str, dict[str | None, Ban]] = {}
        for each in self.all:
            self._by_uid.setdefault(each.uid, {})[each.device] = each

    def __len__(self) -> int:
        return len(self.all) + len(self.addresses)

    def find(self, uid: str, device: str, now: float) -> Ban | None:
        """Return the ban that keeps out a device of a user: of two, the one that ends later."""
        bans = self._by_uid.get(uid)
        if bans is None:
            return None
        found = [each for which in (None, device) if (each := bans.get(which)) and each.ends_at > now]
        return max(found, key=lambda ban: ban.ends_at) if found else None

    def find_address(self, address: str, now: float) -> AddressBan | None:
        """Return the ban that keeps out an address, as limits count it: of several, that which ends last."""
        if not self.addresses:
            return None
        found = [each for each in self._by_network.containing(address) if each.ends_at > now]
        return max(found, key=lambda ban: ban.ends_at) if found else None
