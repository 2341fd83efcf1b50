"""The bench of a mass expiry, small: every session that it makes is reported online and offline, once."""

import pytest

from benchmarks.expiry import ExpiryResult, play
from presence.store.embedded import embedded_redis
from presence.store.keys import Keys

SESSIONS = 1500


@pytest.mark.parametrize("shards", [1, 4])
async def test_all_end_in_one_tick_and_none_is_missing(shards: int) -> None:
    keys = Keys("bench", shards)
    with embedded_redis() as redis:
        result = await play(redis.url, keys, SESSIONS, idle_timeout=1.0)
    assert result.entries == {"online": SESSIONS, "offline": SESSIONS}
    assert result.is_whole()
    assert result.stretch_s > 0
    print(f"{shards} shards, {SESSIONS} ends:", result.table(), sep="\n")


@pytest.mark.parametrize(
    ("entries", "skipped"),
    [
        ({"online": 2, "offline": 1}, 0),
        ({"online": 2, "offline": 2, "gap": 1}, 0),
        ({"online": 2, "offline": 2}, 1),
        ({"online": 3, "offline": 3}, 0),
    ],
)
def test_what_is_missing_or_too_much_is_noticed(entries: dict[str, int], skipped: int) -> None:
    result = ExpiryResult(2, 1.0, 0.010, "run", 0, 1.0, 1.0, entries, skipped)
    assert not result.is_whole()
    assert f"skipped {skipped}" in result.table()
