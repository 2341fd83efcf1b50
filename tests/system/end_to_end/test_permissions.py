"""`presence serve` as a user of Redis that may do nothing else, and when Redis shuts it out."""

import pytest

from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import Redis, open_client
from tests.docs.roles import ask, permissions
from tests.server.test_serve import failed_start
from tests.support.events import assert_alternation, read_events
from tests.support.server_process import running_server
from tests.support.swarm import Swarm

FAST = ("--idle-timeout", "2", "--tick", "0.1", "--disconnect-grace", "0", "--lease", "1")


def as_user(server: EmbeddedRedis, password: str = "s3cret") -> str:
    return server.url.replace("unix://", f"unix://presence-server:{password}@")


@pytest.fixture
def admin(redis_server: EmbeddedRedis) -> Redis:
    client = open_client(redis_server.url)
    ask(client, "ACL", "SETUSER", "presence-server", *permissions("server"), ">s3cret")
    return client


def test_a_wrong_password_ends_the_start_at_once_and_is_not_shown(
    redis_server: EmbeddedRedis, admin: Redis
) -> None:
    status, output, _ = failed_start("--redis", as_user(redis_server, "hunter2"))
    assert status == 1
    assert "invalid username-password pair" in output
    assert "presence-server:***@" in output
    assert "hunter2" not in output
    assert "waiting for Redis" not in output


def test_a_missing_right_ends_the_start_at_once_and_is_named(
    redis_server: EmbeddedRedis, admin: Redis
) -> None:
    ask(admin, "ACL", "SETUSER", "presence-server", "-xdel")
    status, output, _ = failed_start("--redis", as_user(redis_server))
    assert status == 1
    assert "ACL SETUSER presence-server +xdel" in output
    assert "ready" not in output.split()


def test_a_server_that_is_shut_out_says_so_once_and_goes_on_when_it_is_let_in(
    redis_server: EmbeddedRedis, admin: Redis
) -> None:
    with running_server("--redis", as_user(redis_server), *FAST) as server:
        with Swarm(server.address, beat_s=0.4) as swarm:
            swarm.log_in(["ann"])
            ask(admin, "ACL", "SETUSER", "presence-server", "off")
            ask(admin, "CLIENT", "KILL", "USER", "presence-server")
            swarm.log_in(["bob"])
            swarm.run(1.5)
            ask(admin, "ACL", "SETUSER", "presence-server", "on")
            swarm.run(5, until=lambda: len(read_events(redis_server.url)) == 2)
    events = read_events(redis_server.url)
    assert [event["uid"] for event in events if event["type"] == "online"] == ["ann", "bob"]
    assert_alternation(events)
    assert not server.logged("Redis user has excess permissions")
    refusals = server.logged("Redis refused")
    assert len(refusals) == 2  # the relay and the cluster, once each
    assert all("invalid username-password pair" in line["error"] for line in refusals), refusals
    assert len(server.logged("Redis reachable again")) == 1
