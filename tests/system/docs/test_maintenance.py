"""The commands of the page on maintenance work, on a Redis with the shipped users and real servers."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from loadtest.servers import PresenceServer
from presence import protocol
from presence.protocol import Kind
from presence.reader import PresenceReader
from presence.store.embedded import find_binary
from tests.docs.pages import ROOT
from tests.support.phone import Phone
from tests.support.server_process import running_server
from tests.support.waiting import wait_for
from tests.system.deploy.test_redis import USERS, Configured, filled_in

pytestmark = [pytest.mark.usefixtures("clean_environment"), pytest.mark.needs("redis-cli")]
PAGE = (ROOT / "docs" / "maintenance.md").read_text(encoding="utf-8")
TIMEOUT_S = 20.0


class Operator:
    """An operator's shell, in a folder that has the Redis, whose passwords are the names of the users."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = folder / "presence"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m presence "$@"\n')
        command.chmod(0o755)

    def run(self, name: str, **variables: str) -> None:
        """Run the block of the page that follows the comment of that name."""
        text = PAGE.partition(f"<!-- {name} -->\n```sh\n")[2].partition("```")[0]
        assert text, name
        places = {"-h HOST": f"-s {self.folder}/r.sock"}
        places |= {f"/var/{each}/": f"{self.folder}/" for each in ("lib/redis", "backups")}
        for documented, real in places.items():
            text = text.replace(documented, real)
        path = os.pathsep.join([str(self.folder), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "REDISCLI_AUTH": "admin"}
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=environment | variables,
            check=True,
            timeout=60,
        )

    def presence(self, *words: str) -> str:
        command = [sys.executable, "-m", "presence", *words]
        ran = subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True, timeout=60)
        return ran.stdout


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path)


def start_redis(folder: Path) -> Configured:
    return Configured(find_binary(), folder, filled_in(USERS))


@pytest.fixture
def redis(operator: Operator) -> Iterator[Configured]:
    with closing(start_redis(operator.folder)) as redis:
        yield redis


def count(server: PresenceServer, event: str) -> int:
    return len(server.logged(event))


def test_a_password_is_rotated_and_a_forgotten_process_shows_itself(
    operator: Operator, redis: Configured
) -> None:
    old = redis.url("presence-server")
    new = old.replace("presence-server:presence-server@", "presence-server:new-one@")
    with running_server("--redis", old, "--no-admin") as forgotten:
        operator.run("add the password", NEW="new-one")
        with running_server("--redis", new, "--no-admin") as restarted:
            operator.run("remove the password", OLD="presence-server")
            wait_for(lambda: count(forgotten, "Redis refused"), TIMEOUT_S)
            assert "AuthenticationError" in forgotten.logged("Redis refused")[0]["error"]
            operator.run("add the password", NEW="presence-server")
            with (
                closing(Phone(forgotten.address)) as ann,
                PresenceReader(redis.url("presence-reader")) as reader,
            ):
                assert ann.ask(protocol.login("ann", id=1)).kind == Kind.OK
                wait_for(lambda: reader.count() == 1, TIMEOUT_S)
            assert count(restarted, "Redis refused") == 0
    assert "new-one" not in (operator.folder / "users.acl").read_text()


def test_token_keys_are_rotated(operator: Operator, redis: Configured) -> None:
    operator.presence(
        "token", "keygen", "--kid", "old", "--append-to", "issuer.json", "--public", "keys.json"
    )
    flags = ("--redis", redis.url("presence-server"), "--no-admin", "--token-keys", "keys.json")
    with running_server(*flags[:-1], str(operator.folder / flags[-1])) as server:

        def login() -> int:
            token = operator.presence("token", "sign", "--keys", "issuer.json", "--uid", "ann").strip()
            with closing(Phone(server.address)) as phone:
                return phone.ask(protocol.login("ann", token=token, id=1)).kind

        assert login() == Kind.OK
        operator.run("make the key")
        wait_for(lambda: count(server, "token keys renewed") == 1, TIMEOUT_S)
        old = (operator.folder / "issuer.json").read_text()
        (operator.folder / "next.json").rename(operator.folder / "issuer.json")
        assert login() == Kind.OK
        operator.run("remove the key", OLD="old")
        wait_for(lambda: count(server, "token keys renewed") == 2, TIMEOUT_S)
        assert server.logged("token keys renewed")[1]["removed"] == ["old"]
        assert login() == Kind.OK
        (operator.folder / "issuer.json").write_text(old)
        assert login() == Kind.ERROR


def test_a_restored_redis_has_the_users_online_and_the_bans_of_the_copy(
    operator: Operator, redis: Configured
) -> None:
    url, server_url = redis.url("presence-operator"), redis.url("presence-server")
    with ExitStack() as stack:
        flags = ("--redis", server_url, "--no-admin", "--idle-timeout", "300")
        server = stack.enter_context(running_server(*flags))
        ann = stack.enter_context(closing(Phone(server.address)))
        assert ann.ask(protocol.login("ann", id=1)).kind == Kind.OK
        operator.presence("ban", "--redis", url, "cyd")
        operator.run("back up")
        operator.presence("ban", "--redis", url, "eve")
        operator.presence("unban", "--redis", url, "cyd")
        bob = stack.enter_context(closing(Phone(server.address)))
        assert bob.ask(protocol.login("bob", id=1)).kind == Kind.OK
        reader = stack.enter_context(PresenceReader(url))
        wait_for(lambda: reader.count() == 2, TIMEOUT_S)
        redis.close()
        shutil.rmtree(operator.folder / "appendonlydir")
        (copy,) = operator.folder.glob("redis-2*")
        shutil.copytree(copy, operator.folder / "appendonlydir")
        stack.enter_context(closing(start_redis(operator.folder)))
        wait_for(lambda: count(server, "Redis lost data, registering sessions again"), TIMEOUT_S)
        wait_for(lambda: reader.count() == 2, TIMEOUT_S)
        assert [ban.uid for ban in reader.bans()] == ["cyd"]
