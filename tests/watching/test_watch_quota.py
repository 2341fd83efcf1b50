"""What the memory of watches allows."""

import pytest

from presence.watching.watch_quota import USER_BYTES, WATCH_BYTES, WatchQuota, bytes_of_watches

OWN = 10
LIMIT_BYTES = 1_000_000


@pytest.mark.parametrize(
    ("watches", "total_bytes", "is_allowed"),
    [
        (OWN, 100 * LIMIT_BYTES, True),
        (OWN + 1, LIMIT_BYTES, True),
        (OWN + 1, LIMIT_BYTES + 1, False),
    ],
)
def test_each_connection_has_its_own_watches_and_others_while_there_is_memory(
    watches: int, total_bytes: int, is_allowed: bool
) -> None:
    assert WatchQuota(OWN, LIMIT_BYTES).allows(watches, total_bytes) is is_allowed


@pytest.mark.parametrize(
    ("users", "watches", "unusual_bytes", "total_bytes"),
    [
        (0, 0, 0, 0),
        (1, 1, 0, USER_BYTES),
        (1, 200, 0, USER_BYTES + 199 * WATCH_BYTES),
        (3, 3, 500, 3 * USER_BYTES + 500),
    ],
)
def test_a_user_is_paid_for_once_with_the_first_watch(
    users: int, watches: int, unusual_bytes: int, total_bytes: int
) -> None:
    assert bytes_of_watches(users, watches, unusual_bytes) == total_bytes
