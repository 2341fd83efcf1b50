"""The users that the page on Redis makes: each does its whole work, and misses whatever is taken from it."""

import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

import presence
from loadtest.redis_cluster import Cluster
from presence.store import scripting
from presence.store.batches import StoreError
from presence.store.client import Redis, RedisError
from presence.store.lease_table import RedisLeaseTable
from presence.store.redis_store import RedisStore
from presence.subscriber import follower, group
from tests.docs.roles import ROLES, SHAPE, Stage
from tests.store.driving import Hand
from tests.store.servers import BINARIES, Server

PAGE = (Path(presence.__file__).parent / "docs" / "redis.md").read_text(encoding="utf-8")
SERVERS_SCRIPTS = ["apply", "claim", "compare", "fence", "lease", "probe", "retire", "sweep"]


@pytest.fixture(
    scope="module", params=["embedded", pytest.param("redis-server", marks=pytest.mark.needs("redis-server"))]
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    binary = BINARIES[request.param]()
    assert binary
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        server = Server(binary, Path(folder))
        yield server
        server.close()


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a read that finds nothing end soon."""
    monkeypatch.setattr(follower, "BLOCK_MS", 1)
    monkeypatch.setattr(group, "BLOCK_MS", 1)


def permissions(role: str) -> list[str]:
    """Return what the page gives a role."""
    found = re.search(rf"<!-- acl {role} -->\n```sh\nredis-cli ACL SETUSER \S+ (.+?)```", PAGE, re.DOTALL)
    assert found, role
    return shlex.split(found[1].replace("\\\n", ""))


def commands(role: str) -> list[str]:
    return [word for word in permissions(role) if word.startswith("+")]


def play(url: str, admin: Redis, role: str, rules: list[str]) -> None:
    """Let a user with these rules do the whole work of a role, on an empty Redis.

    Args:
        url: where everybody may do everything; of a cluster, too.
        admin: a client of the server there that has shard 0.
        role: whose work.
        rules: what the user may do.
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


def ask(admin: Redis, *words: str) -> Any:
    return admin.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py's


def denied(admin: Redis) -> set[str]:
    """Return the commands for which permission was missed, as rules name them."""
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
        with pytest.raises((StoreError, RedisError, AssertionError)) as caught:
            play(server.url, server.client, role, [w for w in permissions(role) if w != command])
        words = command[1:].replace("|", " ")
        assert command in denied(server.client) or f"may not call {words}" in str(caught.value).lower()


@pytest.mark.parametrize("role", ROLES)
def test_a_role_does_its_whole_work_in_a_cluster(redis_cluster: Cluster, role: str) -> None:
    rules = [*permissions(role), *permissions("cluster")]
    for member in redis_cluster.members:
        ask(member.client, "ACL", "SETUSER", "tried", *rules, ">secret")
    play(redis_cluster.url, redis_cluster.primary_of("{0}").client, role, rules)


@pytest.mark.parametrize("missing", [None, "+cluster|slots", "+ping"])
def test_in_a_cluster_a_server_is_found_and_looked_for_again(
    redis_cluster: Cluster, missing: str | None
) -> None:
    rules = [word for word in (*permissions("server"), *permissions("cluster")) if word != missing]
    for member in redis_cluster.members:
        ask(member.client, "ACL", "SETUSER", "tried", *rules, ">secret")
    with closing(RedisStore(redis_cluster.url.replace("://", "://tried:secret@"), SHAPE)) as store:
        with pytest.raises(StoreError, match="NoPermission") if missing else nullcontext():
            store.check_meta()
            routes = store._scripting._routes
            routes.doubt(routes.client(SHAPE.keys.meta))  # as when a call has failed
            store.check_meta()


def test_a_server_may_call_whatever_its_scripts_call() -> None:
    text = "".join(scripting.source(name) for name in SERVERS_SCRIPTS)
    called = re.findall(r"redis\.call\('(\w+)'(?:, '([A-Z]+)')?", text)
    assert {f"+{command}|{part}".rstrip("|").lower() for command, part in called} <= {*commands("server")}
