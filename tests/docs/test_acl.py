"""The users that the page on Redis makes: each does its whole work, and misses whatever is taken from it."""

import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import presence
from presence.store import scripting
from presence.store.batches import StoreError
from presence.store.client import RedisError
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
    """Return what the page gives a role, from `reset` on."""
    found = re.search(rf"<!-- acl {role} -->\n```sh\nredis-cli ACL SETUSER (.+?)```", PAGE, re.DOTALL)
    assert found, role
    words = shlex.split(found[1].replace("\\\n", ""))
    assert words[:2] == [f"presence-{role}", "reset"]
    return words[1:]


def commands(role: str) -> list[str]:
    return [word for word in permissions(role) if word.startswith("+")]


def play(server: Server, role: str, rules: list[str]) -> None:
    """Let a user with these rules do the whole work of a role, on an empty Redis."""
    ask(server, "FLUSHALL")
    ask(server, "ACL", "SETUSER", "tried", *rules, ">secret")
    store, table = RedisStore(server.url, SHAPE), RedisLeaseTable(server.url, SHAPE.keys, 10.0)
    hand = Hand(store, "seed")
    with closing(store), closing(table):
        if role != "server":
            store.check_meta()
            hand.open()
            table.renew("seed", 1, "{}", [])
        ask(server, "SCRIPT", "FLUSH")
        ask(server, "ACL", "LOG", "RESET")
        url = server.url.replace("unix://", "unix://tried:secret@")
        ROLES[role](Stage(url, server.client, hand))


def ask(server: Server, *words: str) -> Any:
    return server.client.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py's


def denied(server: Server) -> set[str]:
    """Return the commands for which permission was missed, as rules name them."""
    log = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in ask(server, "ACL", "LOG")]
    return {f"+{entry[b'object'].decode().lower()}" for entry in log if entry[b"reason"] == b"command"}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_does_its_whole_work(server: Server, role: str) -> None:
    play(server, role, permissions(role))
    assert denied(server) <= {"+client|setinfo"}  # redis-py tells its name where it may


@pytest.mark.parametrize("role", ROLES)
def test_a_role_misses_each_command_that_is_taken_from_it(server: Server, role: str) -> None:
    for command in commands(role):
        with pytest.raises((StoreError, RedisError, AssertionError)):
            play(server, role, [word for word in permissions(role) if word != command])
        assert command in denied(server)


def test_a_server_may_call_whatever_its_scripts_call() -> None:
    text = "".join(scripting.source(name) for name in SERVERS_SCRIPTS)
    called = re.findall(r"redis\.call\('(\w+)'(?:, '([A-Z]+)')?", text)
    assert {f"+{command}|{part}".rstrip("|").lower() for command, part in called} <= {*commands("server")}
