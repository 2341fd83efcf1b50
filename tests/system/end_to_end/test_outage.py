"""Redis is killed and comes back: no client waits meanwhile, and every period is reported."""

import os
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest

from loadtest.usage import Stolen
from presence.store.embedded import find_binary
from tests.store.servers import Server as Redis
from tests.support.events import assert_alternation, of_type, read_events
from tests.support.server_process import running_server
from tests.support.swarm import Swarm

OUTAGE_S = 10.0
BEAT_S = 1.2
ANSWER_S = 0.250  # the slowest, while the processes have the processor


@pytest.mark.alone
def test_redis_is_killed_for_ten_seconds() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="ps-") as folder,
        closing(Redis(find_binary(), Path(folder), keep=True)) as redis,
        running_server("--redis", redis.url, "--idle-timeout", "3", "--tick", "0.5") as server,
    ):
        pids = (os.getpid(), server.process.pid)
        with Stolen(pids=pids) as stolen, Swarm(server.address, beat_s=BEAT_S) as swarm:
            steady = swarm.log_in((f"steady-{n}" for n in range(100)), asks=True)
            quiet = swarm.log_in(f"quiet-{n}" for n in range(200))
            swarm.run(5, until=swarm.logged_in)
            swarm.run(1.5)
            for client in steady:
                client.round_trips.clear()
            redis.kill()
            killed_at = time.monotonic()
            for n, client in enumerate(quiet):
                client.silent_at = killed_at + 4 * n / len(quiet)
            late = swarm.log_in(f"late-{n}" for n in range(200))
            for client in late[:100]:
                client.silent_at = killed_at
            swarm.run(killed_at + OUTAGE_S - time.monotonic())
            waits = [seconds for client in steady for seconds in client.round_trips]
            unanswered = sum(len(client.unanswered) for client in steady)

            redis.start()
            back_at = time.monotonic()
            swarm.run(5.0, until=lambda: len(of_type(read_events(redis.url), "offline")) >= 300)
            caught_up_s = time.monotonic() - back_at
            swarm.run(1.5)
            events = read_events(redis.url)
    online, offline = of_type(events, "online"), of_type(events, "offline")
    assert len(waits) > 500
    answer_s = ANSWER_S + stolen.worst_s
    assert unanswered <= len(steady) / BEAT_S * answer_s, "at most those sent in the last moment"
    assert sorted(waits)[len(waits) * 99 // 100] <= 0.050 + stolen.worst_s
    assert max(waits) <= answer_s
    assert caught_up_s <= 5.0
    assert_alternation(events)
    gone = {client.uid for client in (*quiet, *late[:100])}
    assert set(offline) == gone
    assert set(online) == {client.uid for client in swarm.clients}
    assert all(len(periods) == 1 for periods in (*online.values(), *offline.values()))
    assert server.report["left_in_outbox"] == 0
    assert server.report["relay"]["retries"] > 0, "a fault was injected"
