"""What the memory of watches allows."""

import pytest

from presence.watching.watch_quota import (
    MAX_USERS,
    SESSION_BYTES,
    USER_BYTES,
    WATCH_BYTES,
    WatchQuota,
    bytes_of_watches,
)

OWN = 10
LIMIT_BYTES = 1_000_000


@pytest.mark.parametrize(
    ("watches", "users", "total_bytes", "is_allowed"),
    [
        (OWN, MAX_USERS + 1, 100 * LIMIT_BYTES, True),
        (OWN + 1, MAX_USERS, LIMIT_BYTES, True),
        (OWN + 1, MAX_USERS, LIMIT_BYTES + 1, False),
        (OWN + 1, MAX_USERS + 1, LIMIT_BYTES, False),
    ],
)
def test_each_connection_has_its_own_watches_and_others_while_there_is_room(
    watches: int, users: int, total_bytes: int, is_allowed: bool
) -> None:
    assert WatchQuota(OWN, LIMIT_BYTES).allows(watches, users, total_bytes) is is_allowed


@pytest.mark.parametrize(
    ("users", "watches", "unusual_bytes", "total_bytes"),
    [
        (0, 0, 0, 0),
        (1, 1, 0, USER_BYTES + 11 + SESSION_BYTES),
        (1, 200, 0, USER_BYTES + 11 + 199 * WATCH_BYTES + 200 * SESSION_BYTES),
        (3, 3, 500, 3 * (USER_BYTES + 11 + SESSION_BYTES) + 500),
    ],
)
def test_a_user_counts_once_with_the_first_watch(
    users: int, watches: int, unusual_bytes: int, total_bytes: int
) -> None:
    counted = bytes_of_watches(
        users=users,
        name_bytes=11 * users,
        watches=watches,
        sessions=watches,
        unusual_bytes=unusual_bytes,
    )
    assert counted == total_bytes
