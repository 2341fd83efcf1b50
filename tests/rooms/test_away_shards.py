"""The moments at which shards are called again whose server does not answer."""

from presence.rooms.away_shards import AwayShards
from presence.store.shard_job import RETRY_FIRST_S, RETRY_MAX_S


def test_all_shards_that_are_away_are_called_again_at_one_moment() -> None:
    away = AwayShards()
    assert away.begin_run(0.0) == set()
    away.not_read(1)
    away.not_changed(2)
    away.end_run(0.0)
    assert (away.unread, away.unchanged) == ({1}, {1, 2})
    between = 0.2 * RETRY_FIRST_S
    assert away.begin_run(between) == set()
    away.not_read(3)
    away.end_run(between)
    assert (away.unread, away.unchanged) == ({1, 3}, {1, 2, 3}), "they wait for the same moment"
    assert away.begin_run(away.retry_at) == {1, 2, 3}
    assert away.unread == away.unchanged == set()


def test_the_pause_grows_until_all_have_answered() -> None:
    away, pauses = AwayShards(), []
    now = 0.0
    for _ in range(20):
        away.begin_run(now)
        away.not_changed(1)
        away.end_run(now)
        away.begin_run(now)  # without a call that fails
        away.end_run(now)
        pauses.append(away.retry_at - now)
        now = away.retry_at
    assert max(pauses) <= 1.5 * RETRY_MAX_S
    assert min(pauses[10:]) >= 0.5 * RETRY_MAX_S
    assert pauses[0] <= 1.5 * RETRY_FIRST_S
    assert away.begin_run(now) == {1}
    away.end_run(now)
    away.begin_run(now)
    away.not_read(2)
    away.end_run(now)
    assert away.retry_at - now <= 1.5 * RETRY_FIRST_S
