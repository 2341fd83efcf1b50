"""How many packets one user may send: beyond, the connection is told so and closed.

Whoever sends thousands of small packets a second takes the time of all others on its server: each costs us
more than it costs him. A user has a bucket, and is in the table only while that is not full, which for
whoever behaves is a millisecond after each packet; see `buckets.py`. It is the user's, not the connection's:
who is closed for a flood and comes back at once finds it as empty as he left it.

Keepalives that come one at a time are not counted, which would cost as much as they do. They are bounded all
the same: their path reads a connection once in each batch, and takes nothing but a single keepalive in that.
Two that arrive together are read as other packets are, and counted here. Pure: time is an argument.
"""

import protocol
from presence.buckets import Buckets, spread_over
from protocol import Code


class PacketRate:
    """Packets of each user, after the login.

    Args:
        rate: packets a second in the long run.
        burst: and how many at once.

    Attributes:
        floods: connections that were closed for it, since the start.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._buckets = Buckets[str](rate, burst)
        self._calm_s = burst / rate
        self.floods = 0

    @property
    def kept(self) -> int:
        """How many users are in the table."""
        return len(self._buckets)

    def count(self, uid: str, packets: int, now: float) -> bytes | None:
        """Count packets of a user; return the goodbye if they are too many."""
        if self._buckets.take(uid, now, packets):
            return None
        self.floods += 1
        return protocol.encode(protocol.goodbye(Code.RATE_LIMITED, retry_after=spread_over(self._calm_s)))

    def tidy(self, now: float) -> None:
        """Drop what is as good as forgotten; called at each tick."""
        self._buckets.tidy(now)
