"""What watches may take of a worker's memory. Pure.

Counted is what is stored: the watches, the users whom they concern with their names, and what the states of
these users take beyond plain ones. A user whom many watch counts once. Each connection has a few watches of
its own: they count, but are never refused. Beyond the limit memory grows for two reasons only:

* connections that come later have watches of their own, too;
* states become larger while they are watched, because their users come online, with `meta` or with devices.

Both count, so nothing else is granted until as much has been freed. Memory that watches had is kept for later
ones until the last watch ends.

Tests: `tests/watching/test_watch_quota.py`, `tests/server/test_watch_memory.py`.
"""

from typing import Final

# Measured by `python -m benchmarks.watch_memory`, rounded up.
USER_BYTES: Final = 115  # of a watched user beside the name, with a plain state and the first watch
WATCH_BYTES: Final = 16  # of a further watch of the same user
SESSION_BYTES: Final = 200  # of a session that watches any user
MAX_USERS: Final = 12_000_000  # of the 16 million of a `UserTable`; the others are for watches of one's own


def bytes_of_watches(
    *, users: int, name_bytes: int, watches: int, sessions: int, unusual_bytes: int = 0
) -> int:
    """Return the memory of watches.

    Args:
        users: whom they concern, each once.
        name_bytes: of these users, in UTF-8.
        watches: all of them.
        sessions: that have them.
        unusual_bytes: what states take beyond plain ones.
    """
    plain = users * (USER_BYTES - WATCH_BYTES) + watches * WATCH_BYTES + sessions * SESSION_BYTES
    return plain + name_bytes + unusual_bytes


class WatchQuota:
    """The memory that watches may take, of which each connection has `own` watches in any case."""

    def __init__(self, own: int, limit_bytes: int) -> None:
        self._own = own
        self.limit_bytes = limit_bytes

    def allows(self, watches: float, users: int, total_bytes: int) -> bool:
        """Whether a connection may have so many watches, when all have so many users and bytes then."""
        return watches <= self._own or (users <= MAX_USERS and total_bytes <= self.limit_bytes)
