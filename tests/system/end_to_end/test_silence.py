"""The promise itself: a client that goes silent is reported offline, once, in time; no other is."""

import os
import random
import time

import pytest

from loadtest.usage import Stolen
from presence.store.embedded import EmbeddedRedis
from tests.support.events import assert_alternation, of_type, read_events
from tests.support.server_process import running_server
from tests.support.swarm import Swarm

LATE_S = 20.0  # for a machine that stands still; how late they were is judged


@pytest.mark.alone
@pytest.mark.parametrize(
    ("idle_timeout", "tick", "silence_within"),
    [
        pytest.param(3.0, 0.5, 4.0, id="T=3s"),
        pytest.param(30.0, 1.0, 2.0, id="default-T=30s", marks=pytest.mark.nightly),
    ],
)
def test_half_of_1000_clients_fall_silent(
    redis_server: EmbeddedRedis, idle_timeout: float, tick: float, silence_within: float
) -> None:
    flags = () if idle_timeout == 30.0 else ("--idle-timeout", str(idle_timeout), "--tick", str(tick))
    with running_server("--redis", redis_server.url, *flags) as server:
        with (
            Stolen(pids=(os.getpid(), server.process.pid)) as stolen,
            Swarm(server.address, beat_s=idle_timeout * 0.4) as swarm,
        ):
            swarm.log_in(f"user-{n}" for n in range(1000))
            swarm.run(5, until=swarm.logged_in)
            assert swarm.logged_in()
            silent = random.sample(swarm.clients, 500)
            for client in silent:
                client.silent_at = time.monotonic() + random.uniform(0, silence_within)
            swarm.run(silence_within + idle_timeout + tick + 0.5)
            give_up = time.monotonic() + LATE_S
            while len(of_type(events := read_events(redis_server.url), "offline")) < len(silent):
                assert time.monotonic() < give_up, "not all are told offline"
                swarm.run(0.1)
    offline = of_type(events, "offline")
    assert set(offline) == {client.uid for client in silent}, "exactly the silent ones"
    assert all(len(periods) == 1 for periods in offline.values()), "each once"
    assert {periods[0]["reason"] for periods in offline.values()} == {"idle_timeout"}
    assert len(of_type(events, "online")) == 1000
    assert_alternation(events)
    delays = [offline[client.uid][0]["at_ms"] / 1000 - client.sent_at for client in silent]
    lag = server.report["tick_overrun_max_ms"] / 1000
    print(f"T = {idle_timeout:g} s: the latest {max(delays):.3f} s, CPU time taken {stolen.worst_s:.3f} s")
    assert lag <= 0.1 + stolen.worst_s
    assert min(delays) >= idle_timeout
    assert max(delays) <= idle_timeout + tick + lag + stolen.worst_s
