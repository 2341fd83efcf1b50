"""What `/metrics` says after a scripted run of real clients against a real server, to the unit."""

import os
import signal
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from presence.embedded import EmbeddedRedis, find_binary
from tests.admin.processes import ADMIN
from tests.admin.scrapes import Found, value
from tests.admin.script import GAUGES, PATIENCE_S, Script, Watch, counted, gauges
from tests.live.events import read_events
from tests.live.server_process import pids, running_server
from tests.store.servers import Server as Redis


def test_figures_are_those_of_the_script_to_the_unit(redis_server: EmbeddedRedis) -> None:
    flags = ("--redis", redis_server.url, "--idle-timeout", "120", "--disconnect-grace", "30")
    with running_server(*flags, *ADMIN) as server:
        watch = Watch(server)
        with closing(Script(server, watch)) as script:
            script.run()
            found = watch.until(lambda seen: counted(seen) == script.counts and gauges(seen) == GAUGES)
        written = Counter((event["type"], event["reason"]) for event in read_events(redis_server.url))
    assert counted(found) == script.counts
    assert gauges(found) == GAUGES
    told = {key[1:]: n for key, n in counted(found).items() if key[0] == "transitions_total"}
    assert told == written
    # Each idle end has its delay, and sessions are in the slots of the wheel.
    assert value(found, "detection_delay_seconds_count", worker="0") == 3
    assert 0 <= (value(found, "detection_delay_seconds_sum", worker="0") or -1) < 3 * PATIENCE_S
    slots = [value(found, f"wheel_{name}_sessions", worker="0") or 0 for name in ("largest_slot", "later")]
    assert 0 < sum(slots) <= (value(found, "sessions", worker="0") or 0)


def rises(before: Found, after: Found, worker: str) -> bool:
    """Whether no counter of a worker is lower in a later scrape."""
    return all(
        after[key] >= number
        for key, number in before.items()
        if key[0].endswith("_total") and ("worker", worker) in key[1] and key in after
    )


def test_a_worker_that_is_replaced_begins_at_zero_and_the_others_go_on(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, "--workers", "2", *ADMIN) as server:
        watch = Watch(server)
        with closing(Script(server, watch)) as script:
            script.log_in(*(f"user-{n}" for n in range(24)))
            wanted = "transitions_total", "online", "login"
            before = watch.until(lambda found: counted(found)[wanted] == 24)
            assert counted(before)[wanted] == 24
            assert all(value(before, "logins_total", worker=worker) for worker in "12")

            started = value(before, "process_start_time_seconds", worker="1") or 0
            os.kill(pids(server)[1], signal.SIGKILL)
            last = watch.until(
                lambda found: (value(found, "process_start_time_seconds", worker="1") or 0) > started
            )
            assert value(last, "worker_up", worker="1") == 1

    for earlier, later in pairwise(watch.seen):
        assert rises(earlier, later, "2")
        same = value(earlier, "process_start_time_seconds", worker="1")
        assert rises(earlier, later, "1") or value(later, "process_start_time_seconds", worker="1") != same
    assert value(last, "logins_total", worker="1") == 0
    assert value(last, "transitions_total", worker="1", type="online", reason="login") == 0
    assert value(last, "logins_total", worker="2") == value(before, "logins_total", worker="2")
    gone = [value(found, "worker_up", worker="1") == 0 for found in watch.seen]
    absent = [value(found, "sessions", worker="1") is None for found in watch.seen]
    assert gone == absent


def test_a_worker_that_hangs_is_told_within_a_moment_and_goes_on_where_it_was(
    redis_server: EmbeddedRedis,
) -> None:
    with running_server("--redis", redis_server.url, "--workers", "2", *ADMIN) as server:
        watch = Watch(server)
        with closing(Script(server, watch)) as script:
            script.log_in(*(f"user-{n}" for n in range(24)))
            before = watch.until(lambda seen: counted(seen) == script.counts)
            os.kill(pids(server)[1], signal.SIGSTOP)
            try:
                hung = watch.until(lambda seen: value(seen, "worker_up", worker="1") == 0)
            finally:
                os.kill(pids(server)[1], signal.SIGCONT)
            after = watch.until(lambda seen: counted(seen) == script.counts)
    assert [value(hung, "worker_up", worker=worker) for worker in "12"] == [0, 1]
    assert value(hung, "sessions", worker="2") == value(before, "sessions", worker="2")
    assert counted(after) == script.counts


def test_what_redis_did_not_hear_is_in_the_outbox_and_is_counted_once_it_has(tmp_path: Path) -> None:
    redis = Redis(find_binary(), tmp_path, keep=True)
    try:
        with running_server("--redis", redis.url, "--idle-timeout", "120", *ADMIN) as server:
            watch = Watch(server)
            with closing(Script(server, watch)) as script:
                script.log_in("before-1", "before-2")
                before = watch.until(lambda seen: counted(seen) == script.counts)
                redis.kill()
                script.log_in("during-1", "during-2", "during-3")
                away = watch.until(
                    lambda seen: value(seen, "redis_up") == value(seen, "redis_connected", worker="0") == 0
                )
                redis.start()
                after = watch.until(lambda seen: counted(seen) == script.counts and is_quiet(seen))
    finally:
        redis.close()
    online = {"type": "online", "reason": "login", "worker": "0"}
    assert [value(each, "transitions_total", **online) for each in (before, away, after)] == [2, 2, 5]
    assert [value(each, "outbox_changes", worker="0") for each in (before, away, after)] == [0, 3, 0]
    assert [value(each, "users_online") for each in (away, after)] == [None, 5]
    assert counted(after) == script.counts


def is_quiet(seen: Found) -> bool:
    """Whether Redis has everything, and its figures are there."""
    return value(seen, "outbox_changes", worker="0") == 0 and value(seen, "users_online") == 5
