"""Swarms and scenarios under locust, against a real server."""

import sys

import pytest

from loadtest.processes import LOCUSTFILE, run_locust
from presence.store.embedded import EmbeddedRedis
from tests.support.server_process import running_server

SERVER = ("--idle-timeout", "2", "--min-idle-timeout", "1", "--tick", "0.5", "--disconnect-grace", "1.5")
OPTIONS = ("--tick", "0.5", "--disconnect-grace", "1.5")
needs_epoll = pytest.mark.skipif(sys.platform != "linux", reason="a swarm waits with epoll")


@pytest.mark.nightly
@needs_epoll
def test_what_a_swarm_does_is_judged(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, *SERVER) as server:
        report = run_locust(
            f"127.0.0.1:{server.address[1]}",
            redis_server.url,
            *(*OPTIONS, "--connections", "100", "--action-every", "3"),
            users=2,
            seconds=7,
            locustfile=LOCUSTFILE.with_name("swarm_user.py"),
        )
    rows = report.rows
    assert (report.status, report.failures, report.broken) == (0, 0, {})
    assert min(report.row(f"offline {reason}").requests for reason in ("idle_timeout", "closed")) >= 5
    assert report.row("online").requests >= 200
    assert min(rows["device", name].requests for name in ("keepalive", "keepalive, answered")) >= 200


@pytest.mark.nightly
def test_a_storm_ends_nobody_who_comes_back_in_time_and_a_limit_fails(redis_server: EmbeddedRedis) -> None:
    storm = ("--scenario", "storm", "--together-every", "4", "--login-p99-max", "0.000001")
    with running_server("--redis", redis_server.url, *SERVER, "--disconnect-grace", "5") as server:
        host = f"127.0.0.1:{server.address[1]}"
        flags = (*OPTIONS, *storm, "--disconnect-grace", "5", "--idle-timeout-wish", "20")
        report = run_locust(host, redis_server.url, *flags, users=100, seconds=6)
    assert (report.status, report.failures, report.broken) == (1, 0, {})
    assert report.rows["device", "login"].requests >= 150
    assert report.row("online").requests == 100
