"""The users that the page on Redis makes: each does its whole work, and misses whatever is taken from it."""

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from presence.admin.responses import ApiError
from presence.common.errors import StoreError
from presence.store import script_runner
from presence.store.redis_client import Redis, RedisError
from presence.store.redis_store import RedisLeaseTable, RedisStore
from presence.store.script_runner import Scripting
from presence.subscriber import follower, group_cursor
from tests.docs.roles import ROLES, SHAPE, Stage, ask, permissions
from tests.store.driving import Hand
from tests.store.servers import Server
from tests.support.redis_cluster import Cluster

SERVERS_SCRIPTS = [
    "apply",
    "claim",
    "compare",
    "deliver",
    "fence",
    "lease",
    "probe",
    "retire",
    "sweep",
]


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a read that finds nothing end soon."""
    monkeypatch.setattr(follower, "BLOCK_MS", 1)
    monkeypatch.setattr(group_cursor, "BLOCK_MS", 1)


def commands(role: str) -> list[str]:
    return [word for word in permissions(role) if word.startswith("+")]


def play(url: str, admin: Redis, role: str, rules: list[str]) -> None:
    """Let a user with these rules do the whole work of a role, on an empty Redis.

    Args:
        url: of a user without restrictions; of a cluster, too.
        admin: a client of the server with shard 0.
    """
    ask(admin, "ACL", "SETUSER", "tried", *rules, ">secret")
    store, table = RedisStore(url, SHAPE), RedisLeaseTable(url, SHAPE.keys, 10.0)
    hand = Hand(store, "seed")
    with closing(store), closing(table):
        if role != "server":
            store.check_meta()
            hand.open()
            table.renew("seed", 1, "{}", [])
        ask(admin, "SCRIPT", "FLUSH")
        ask(admin, "ACL", "LOG", "RESET")
        ROLES[role](Stage(url.replace("://", "://tried:secret@"), admin, hand))


def denied(admin: Redis) -> set[str]:
    """Return the commands that were denied, as ACL rules name them."""
    log = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in ask(admin, "ACL", "LOG")]
    return {f"+{entry[b'object'].decode().lower()}" for entry in log if entry[b"reason"] == b"command"}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_does_its_whole_work(server: Server, role: str) -> None:
    server.client.flushall()
    play(server.url, server.client, role, permissions(role))
    assert denied(server.client) <= {"+client|setinfo"}  # redis-py tells its name where it may


@pytest.mark.parametrize("role", ROLES)
def test_a_role_misses_each_command_that_is_taken_from_it(server: Server, role: str) -> None:
    for command in commands(role):
        server.client.flushall()
        with pytest.raises((StoreError, RedisError, ApiError, AssertionError)) as caught:
            play(server.url, server.client, role, [w for w in permissions(role) if w != command])
        words = command[1:].replace("|", " ")
        assert command in denied(server.client) or f"may not call {words}" in str(caught.value).lower()


@pytest.fixture
def cluster(redis_cluster: Cluster) -> Iterator[Cluster]:
    yield redis_cluster
    for member in redis_cluster.members:
        ask(member.client, "ACL", "DELUSER", "tried")


def make_everywhere(cluster: Cluster, rules: list[str]) -> None:
    for member in cluster.members:
        ask(member.client, "ACL", "SETUSER", "tried", "reset", *rules, ">secret")


@pytest.mark.parametrize("role", ROLES)
def test_a_role_does_its_whole_work_in_a_cluster_and_needs_the_map(cluster: Cluster, role: str) -> None:
    rules = [*permissions(role), *permissions(role, "cluster")]
    make_everywhere(cluster, rules)
    admin = cluster.primary_of("{0}").client
    play(cluster.url, admin, role, rules)
    for member in cluster.members:
        member.client.flushall()
    make_everywhere(cluster, permissions(role))
    with pytest.raises((StoreError, RedisError), match="cluster"):
        play(cluster.url, admin, role, permissions(role))


@pytest.mark.parametrize("role", ["server", "operator"])
def test_who_calls_scripts_asks_whether_a_server_is_back(cluster: Cluster, role: str) -> None:
    rules = [*permissions(role), *permissions(role, "cluster")]
    assert isinstance(answer_after_doubt(cluster, rules), list)
    failure = answer_after_doubt(cluster, [word for word in rules if word != "+ping"])
    assert isinstance(failure, StoreError)
    assert "'ping'" in str(failure)


def answer_after_doubt(cluster: Cluster, rules: list[str]) -> Any:
    make_everywhere(cluster, rules)
    with closing(Scripting(cluster.url.replace("://", "://tried:secret@"))) as scripts:
        scripts._routes.invalidate(scripts._routes.client(SHAPE.keys.events(0)))  # as when a call has failed
        (answer,) = scripts.evaluate([SHAPE.operator_call("kick", 0, ["ann"])])
    return answer


def test_a_server_may_call_whatever_its_scripts_call() -> None:
    text = "".join(script_runner.source(name) for name in SERVERS_SCRIPTS)
    called = re.findall(r"redis\.call\('(\w+)'(?:, '([A-Z]+)')?", text)
    assert {f"+{command}|{part}".rstrip("|").lower() for command, part in called} <= {*commands("server")}
