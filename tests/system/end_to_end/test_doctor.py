"""Each fault is made for real and found, with what fixes it; that is done where it can be, and is enough."""

import json
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from presence.store.embedded import EmbeddedRedis, embedded_redis
from presence.store.redis_client import Redis, open_client
from tests.docs.roles import ask, permissions
from tests.support.preloaded import PreloadedServer
from tests.support.server_process import running_server

ANY_PORT = ("--port", "0", "--no-admin")


class DoctorLines:
    """The output of the doctor in a process of its own: exit status and results."""

    def __init__(self, *flags: str, before: Callable[[], None] | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PRESENCE_")}
        run = subprocess.run(
            [sys.executable, "-m", "presence", "doctor", "--json", *flags],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=environment,
            preexec_fn=before,
        )
        assert run.returncode in {0, 1}, run.stderr
        self.status = run.returncode
        self.checks: list[dict[str, Any]] = json.loads(run.stdout)["checks"]

    def of(self, check: str) -> dict[str, Any]:
        (found,) = [each for each in self.checks if each["check"] == check]
        return found

    @property
    def failed(self) -> list[str]:
        return [each["check"] for each in self.checks if each["status"] == "fail"]


@pytest.fixture
def redis_server() -> Iterator[EmbeddedRedis]:
    with embedded_redis() as server:
        yield server


@pytest.fixture
def admin(redis_server: EmbeddedRedis) -> Iterator[Redis]:
    with closing(open_client(redis_server.url)) as client:
        yield client


def test_a_low_file_limit(redis_server: EmbeddedRedis) -> None:
    def low() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1024))

    flags = (*ANY_PORT, "--redis", redis_server.url, "--max-connections", "1500")
    output = DoctorLines(*flags, before=low)
    assert (output.status, output.failed) == (1, ["open files"])
    found = output.of("open files")
    assert "1,024 (soft 512)" in found["have"]
    enough = int(found["fix"].removeprefix("LimitNOFILE=").split()[0])

    def fixed() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, enough))

    assert DoctorLines(*flags, before=fixed).status == 0
    server = PreloadedServer(*flags[3:], before=fixed)
    assert server.stop() == 0


def test_a_redis_that_deletes_and_has_no_limit(redis_server: EmbeddedRedis, admin: Redis) -> None:
    admin.config_set("maxmemory-policy", "allkeys-lru")
    flags = (*ANY_PORT, "--redis", redis_server.url)
    output = DoctorLines(*flags)
    assert output.failed == ["redis eviction"]
    checks = ("redis eviction", "redis memory", "redis persistence")
    for check in checks:
        fix(admin, output.of(check)["fix"])
    fixed = DoctorLines(*flags)
    assert fixed.status == 0
    assert [fixed.of(check)["status"] for check in checks] == ["ok", "ok", "ok"]


def fix(admin: Redis, line: str) -> None:
    """Run the suggested redis-cli commands."""
    words = shlex.split(line.partition(",")[0].partition(" and ")[0])
    assert words[0] == "redis-cli", line
    ask(admin, *words[1:])


def test_a_right_that_is_missing(redis_server: EmbeddedRedis, admin: Redis) -> None:
    rules = [rule for rule in permissions("server") if rule not in {"+xadd", "+zscore"}]
    ask(admin, "ACL", "SETUSER", "tried", *rules, ">secret")
    flags = (*ANY_PORT, "--redis", redis_server.url.replace("://", "://tried:secret@"))
    output = DoctorLines(*flags)
    assert output.failed == ["redis rights"]
    found = output.of("redis rights")
    assert found["fix"] == "ACL SETUSER tried +xadd +zscore"
    ask(admin, *shlex.split(found["fix"]))
    fixed = DoctorLines(*flags)
    assert (fixed.status, fixed.of("redis rights")["status"]) == (0, "ok")


def test_rooms_need_further_rights_for_the_doctor_as_for_the_server(
    redis_server: EmbeddedRedis, admin: Redis
) -> None:
    ask(admin, "ACL", "SETUSER", "tried", *permissions("server"), ">secret")
    flags = ("--redis", redis_server.url.replace("://", "://tried:secret@"), "--rooms", "open")
    output, wanted = DoctorLines(*ANY_PORT, *flags), "ACL SETUSER tried +zcard +zscan"
    assert (output.failed, output.of("redis rights")["fix"]) == (["redis rights"], wanted)
    words = [sys.executable, "-m", "presence", "serve", *ANY_PORT, *flags]
    refused = subprocess.run(words, check=False, capture_output=True, text=True, timeout=20)
    assert (refused.returncode, wanted in refused.stderr) == (1, True)
    ask(admin, *shlex.split(output.of("redis rights")["fix"]))
    assert DoctorLines(*ANY_PORT, *flags).status == 0
    with running_server(*flags):
        pass  # it is ready


def test_a_bad_key(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": [{"kid": "main", "alg": "HS256", "kty": "oct", "k": "c2hvcnQ"}]}')
    keys.chmod(0o600)
    flags = (*ANY_PORT, "--redis", redis_server.url, "--token-keys", str(keys))
    output = DoctorLines(*flags)
    assert output.failed == ["token keys"]
    found = output.of("token keys")
    assert "'main'" in found["have"]
    assert "c2hvcnQ" not in json.dumps(output.checks)
    assert "presence token keygen --append-to FILE" in found["fix"]
    keys.unlink()
    words = ["token", "keygen", "--append-to", str(tmp_path / "all"), "--public", str(keys)]
    subprocess.run([sys.executable, "-m", "presence", *words], check=True, capture_output=True)
    assert DoctorLines(*flags).status == 0


def test_beside_a_server_nothing_fails_and_other_settings_are_named(
    redis_server: EmbeddedRedis,
) -> None:
    with running_server("--redis", redis_server.url, "--lease", "20") as server:
        port = str(server.address[1])
        output = DoctorLines("--no-admin", "--port", port, "--redis", redis_server.url)
        assert output.status == 0
        assert (output.of("ports")["status"], output.of("ports")["have"]) == ("warn", "in use")
        assert output.of("nodes")["have"] == "1"
        assert "has lease=20.0; here lease=10.0" in output.of("nodes' settings")["have"]
        assert server.process.poll() is None
