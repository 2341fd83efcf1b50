"""What watches may take of a worker's memory. Pure.

Counted is what is stored: the watches, the users whom they concern, and what the states of these users take
beyond the usual. Nothing is reserved, so a user who is watched by many is paid for once. Each connection has
a few watches of its own: they are counted, but never refused. Beyond the limit memory can grow for two
reasons only, by at most

* the watches of their own of connections that come later, and
* states that become larger while they are watched: their users are online, with `meta` or with devices.

Both count, so nothing else is granted until as much has been freed.
"""

from typing import Final

USER_BYTES: Final = 664  # of a watched user, with the first watch; measured
WATCH_BYTES: Final = 83  # of a further watch of the same user; measured


def bytes_of_watches(users: int, watches: int, unusual_bytes: int = 0) -> int:
    """Return the memory of watches.

    Args:
        users: whom they concern, each once.
        watches: all of them.
        unusual_bytes: of states that take more than `USER_BYTES` includes.
    """
    return users * (USER_BYTES - WATCH_BYTES) + watches * WATCH_BYTES + unusual_bytes


class WatchQuota:
    """The memory that watches may take, of which each connection has `own` watches in any case."""

    def __init__(self, own: int, limit_bytes: int) -> None:
        self._own = own
        self.limit_bytes = limit_bytes

    def allows(self, watches: int, total_bytes: int) -> bool:
        """Whether a connection may have so many watches, when all connections' would take `total_bytes`."""
        return watches <= self._own or total_bytes <= self.limit_bytes
