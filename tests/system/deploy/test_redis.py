"""What is copied to a Redis: the users are those of the page on Redis, the settings are its advice."""

import contextlib
import hashlib
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from presence.cli.main import main
from presence.reader import PresenceReader
from presence.store.embedded import find_binary
from tests.cli.test_doctor import told
from tests.deploy.units import DEPLOY
from tests.docs.roles import PAGE, ROLES, permissions
from tests.support.server_process import running_server
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("clean_environment")
USERS = (DEPLOY / "redis" / "users.acl").read_text(encoding="utf-8")
CONF = DEPLOY / "redis" / "redis.conf"
SETTINGS = dict(re.findall(r"^([a-z-]+) (.+)$", CONF.read_text(encoding="utf-8"), re.MULTILINE))
ONE_SERVER = PAGE[PAGE.index("## One server") : PAGE.index("## A replica")]


@pytest.fixture(params=["embedded", pytest.param("redis-server", marks=pytest.mark.needs("redis-server"))])
def binary(request: pytest.FixtureRequest) -> str:
    path = find_binary() if request.param == "embedded" else shutil.which(request.param)
    assert path
    return path


class Configured:
    """A Redis with the documented settings, in a folder of the test."""

    def __init__(self, binary: str, folder: Path, users: str) -> None:
        (folder / "users.acl").write_text(users)
        elsewhere = re.sub("^(port|dir|aclfile) .*$", "", CONF.read_text(), flags=re.MULTILINE)
        here = f"port 0\nunixsocket {folder}/r.sock\ndir {folder}\naclfile {folder}/users.acl\n"
        (folder / "redis.conf").write_text(f"{elsewhere}\n{here}")
        self._socket = folder / "r.sock"
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen([binary, str(folder / "redis.conf")], stdout=log, stderr=log)
        wait_for(lambda: self._answers() or self.process.poll() is not None, 20)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(self._socket))
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith(b"-NOAUTH")
        return False

    def url(self, user: str) -> str:
        """The URL for a user whose password is the name; "": no user."""
        return f"unix://{user}:{user}@{self._socket}" if user else f"unix://{self._socket}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def filled_in(users: str) -> str:
    """Replace the placeholders by password hashes, as an operator does: each password is the user's name."""
    lines = []
    for line in users.splitlines():
        digest = hashlib.sha256(line.split()[1].encode()).hexdigest()
        lines.append(re.sub("#SHA256-OF-[A-Z-]+", f"#{digest}", line))
    return "\n".join(lines) + "\n"


@pytest.fixture
def server(binary: str, tmp_path: Path) -> Iterator[Configured]:
    with contextlib.closing(Configured(binary, tmp_path, filled_in(USERS))) as server:
        assert server.process.poll() is None, (tmp_path / "log").read_text()
        yield server


def test_each_user_is_that_of_the_page_and_there_is_nobody_else_but_who_administers() -> None:
    names = [line.split()[1] for line in USERS.splitlines()]
    assert names == ["default", "admin", *(f"presence-{role}" for role in ROLES)]
    for role in ROLES:
        rules = [f"#SHA256-OF-{rule[1:]}" if rule[0] == ">" else rule for rule in permissions(role)]
        assert " ".join(["user", f"presence-{role}", *rules]) in USERS.splitlines()


def test_the_settings_are_the_advice_of_the_page() -> None:
    advised = dict(re.findall(r"^\| `([a-z-]+) ([^` ]+)` \|", ONE_SERVER, re.MULTILINE))
    assert len(advised) == 4
    assert SETTINGS.items() >= advised.items()


def test_the_users_cannot_be_used_before_somebody_has_given_them_passwords(
    binary: str, tmp_path: Path
) -> None:
    with contextlib.closing(Configured(binary, tmp_path, USERS)) as server:
        assert server.process.wait(20) == 1
    assert "users.acl" in (tmp_path / "log").read_text()


def test_a_server_serves_as_its_user_and_the_doctor_is_content(
    server: Configured, capsys: pytest.CaptureFixture[str]
) -> None:
    as_server = server.url("presence-server")
    with running_server("--redis", as_server), PresenceReader(as_server) as reader:
        # Its row says that it starts until the next renewal of its lease.
        wait_for(lambda: [node.readiness for node in reader.nodes()] == ["ready"])
        status, checks = told(capsys, "--port", "0", "--no-admin", "--redis", as_server)
    assert status == 0
    of_redis = {name: found[0]["status"] for name, found in checks.items() if name.startswith("redis")}
    assert {*of_redis.values()} == {"ok"}
    of_nodes = [found["status"] for name in ("data", "nodes", "nodes' settings") for found in checks[name]]
    assert of_nodes == ["ok"] * 3
    assert main(["nodes", "--redis", server.url("")]) == 1
    assert "uthentication required" in capsys.readouterr().err, "nobody gets in without a name"


def test_a_restart_loses_nothing(binary: str, tmp_path: Path) -> None:
    users = filled_in(USERS)
    with contextlib.closing(Configured(binary, tmp_path, users)) as server:
        with redis.Redis.from_url(server.url("presence-server")) as client, client.pipeline() as transaction:
            transaction.hset("presence:{0}:online", "ann", "record")
            transaction.xadd("presence:{0}:events", {"uid": "ann"})
            transaction.execute()
        server.process.terminate()
        server.process.wait(20)
    with contextlib.closing(Configured(binary, tmp_path, users)) as server:
        with redis.Redis.from_url(server.url("presence-server")) as client:
            assert client.hget("presence:{0}:online", "ann") == b"record"
            assert len(client.xrange("presence:{0}:events")) == 1


def test_the_passwords_that_the_page_makes_are_taken(binary: str, tmp_path: Path) -> None:
    page = (DEPLOY / "README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"<!-- passwords -->\n```sh\n(.+?)```", page, re.DOTALL)
    (tmp_path / "users.acl").write_text(USERS)
    script = script.replace("/etc/redis", str(tmp_path))
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    passwords = dict(line.split() for line in run.stdout.splitlines())
    with contextlib.closing(Configured(binary, tmp_path, (tmp_path / "users.acl").read_text())) as server:
        url = server.url("presence-server").replace(":presence-server@", f":{passwords['SERVER']}@")
        assert main(["doctor", "--port", "0", "--no-admin", "--redis", url]) == 0
