"""Bans on a real server with two workers: through outages of Redis and restarts of the server."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from loadtest.redis_sentinel import SentinelSetup
from loadtest.servers import PRESENCE, LocalRedis, PresenceServer
from presence.ops import ban
from presence.protocol import Code, Kind
from presence.reader import PresenceReader
from presence.store.embedded import find_binary
from presence.store.redis_client import RedisError
from tests.store.servers import Server as Redis
from tests.support.proxy import Proxy
from tests.support.redis_cluster import Cluster
from tests.support.server_process import running_server
from tests.support.swarm import Swarm
from tests.support.waiting import wait_for

FLAGS = ("--workers", "2", "--idle-timeout", "8")
AT_ONCE_S = 1.0
RECOVERED_S = 5.0  # after a failover; the table is read each minute in any case
LOGINS = 40  # over several periods of the accept rotation: each worker gets some


@pytest.fixture
def redis() -> Iterator[Redis]:
    with (
        tempfile.TemporaryDirectory(prefix="ps-") as folder,
        closing(Redis(find_binary(), Path(folder), keep=True)) as redis,
    ):
        yield redis


def command(redis: Redis | LocalRedis, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, *PRESENCE, *words, "--json", "--redis", redis.url],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return json.loads(done.stdout)


def refused_everywhere(server: PresenceServer, uid: str) -> bool:
    """Whether every login of a user is refused as banned."""
    with Swarm(server.address, beat_s=2) as swarm:
        swarm.log_in_everywhere([uid] * LOGINS)
        swarm.run(5, until=lambda: all(client.received for client in swarm.clients))
        answers = [client.received[0] for client in swarm.clients]
    return all(each.kind == Kind.ERROR and each.payload["code"] == Code.BANNED for each in answers)


def test_a_ban_takes_effect_after_a_failover_that_left_the_old_primary_running() -> None:
    """Nobody closes the connections to it, and nothing that the new one publishes arrives there."""
    with (
        LocalRedis() as old,
        LocalRedis() as new,
        Proxy(old.path) as path,
        Proxy(old.path) as way,
    ):
        new.client.replicaof(*way.address)
        assert wait_for(lambda: new.client.info("replication")["master_link_status"] == "up")
        with running_server("--redis", path.url, *FLAGS) as server, Swarm(server.address, beat_s=2) as swarm:
            clients = swarm.log_in(["ann", "bob"])
            swarm.run(5, until=swarm.logged_in)
            new.client.replicaof("NO", "ONE")
            path.retarget(new.path)
            way.blackhole()
            old.client.replicaof(*way.address)
            swarm.run(RECOVERED_S)
            command(new, "ban", "ann")
            swarm.run(AT_ONCE_S, until=lambda: clients[0].is_closed)
            assert clients[0].is_closed
            assert not clients[1].is_closed


def test_bans_count_at_all_workers_and_outlive_restarts_and_outages(redis: Redis) -> None:
    with running_server("--redis", redis.url, *FLAGS) as server:
        with Swarm(server.address, beat_s=2) as swarm:
            clients = swarm.log_in(["ann", "bob"])
            swarm.run(5, until=swarm.logged_in)
            swarm.run(0.5)
            started = time.monotonic()
            assert command(redis, "ban", "ann", "--reason", "rude")["ann"]["sessions"] == 1
            swarm.run(5, until=lambda: clients[0].is_closed)
            assert time.monotonic() - started < AT_ONCE_S + 4, "a command may need 4 s on a busy machine"
            goodbye = clients[0].received[-1]
            assert (goodbye.kind, goodbye.payload["code"]) == (Kind.GOODBYE, Code.BANNED)
            assert not clients[1].is_closed
        assert refused_everywhere(server, "ann")
    stopped = server.logged("stopped")
    refused = [line["core"]["refused"].get("banned", 0) for line in stopped]
    assert sum(refused) == LOGINS
    assert min(refused) > 0, "each worker knew it"

    with running_server("--redis", redis.url, *FLAGS) as server:
        assert refused_everywhere(server, "ann"), "after a restart"
        redis.kill()
        assert refused_everywhere(server, "ann"), "while Redis is away"
        redis.start()
        with PresenceReader(redis.url) as reader:
            ban.ban(redis.url, reader, ["cyd"], for_s=3600, by="op", wait_s=0)
        with Swarm(server.address, beat_s=2) as swarm:
            swarm.run(2.0)  # until each worker has its channel again
        assert refused_everywhere(server, "cyd"), "after an outage"
        assert [each["uid"] for each in command(redis, "bans")["bans"]] == ["cyd", "ann"]
        assert command(redis, "unban", "ann") == {"ann": [None]}
        time.sleep(AT_ONCE_S)
        with Swarm(server.address, beat_s=2) as swarm:
            swarm.log_in(["ann"])
            swarm.run(5, until=swarm.logged_in)
            assert swarm.logged_in()


def can_be_read(reader: PresenceReader) -> bool:
    """Whether a reader has found the new primary."""
    with suppress(RedisError):
        return reader.bans() != []
    return False


def test_bans_on_a_cluster() -> None:
    with Cluster() as cluster, running_server("--redis", cluster.url, "--idle-timeout", "8") as server:
        with PresenceReader(cluster.url) as reader:
            ban.ban(cluster.url, reader, ["ann"], by="op", wait_s=0)
            assert [each.uid for each in reader.bans()] == ["ann"]
            wait_for(lambda: refused_everywhere(server, "ann"))
            assert not refused_everywhere(server, "bob")
            assert ban.unban(cluster.url, reader, ["ann"], by="op") == {"ann": [None]}
            wait_for(lambda: not refused_everywhere(server, "ann"))


def test_bans_outlive_a_failover_behind_sentinels() -> None:
    with (
        SentinelSetup() as setup,
        running_server("--redis", setup.url, "--idle-timeout", "8") as server,
        PresenceReader(setup.url) as reader,
    ):
        ban.ban(setup.url, reader, ["ann"], by="op", wait_s=0)
        wait_for(lambda: refused_everywhere(server, "ann"))
        former = setup.primary
        assert former.client.wait(1, 5000) >= 1, "a replica has it"
        former.kill()
        setup.wait_until_replaced(former)
        assert refused_everywhere(server, "ann")
        wait_for(lambda: can_be_read(reader))
        ban.ban(setup.url, reader, ["bob"], by="op", wait_s=0)
        assert {each.uid for each in reader.bans()} == {"ann", "bob"}
        wait_for(lambda: refused_everywhere(server, "bob"))
