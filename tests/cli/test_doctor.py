"""``presence doctor`` as it is typed: output and exit status."""

import json
from pathlib import Path
from typing import Any

import pytest

from presence.cli.main import main
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import Redis
from tests.store.driving import write_former_data

pytestmark = pytest.mark.usefixtures("clean_environment")
ANY_PORT = ("--port", "0", "--no-admin")


def told(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, list[Any]]]:
    """Return the exit status, and the results by check."""
    status = main(["doctor", "--json", *flags])
    answer = json.loads(capsys.readouterr().out)
    checks: dict[str, list[Any]] = {}
    for each in answer["checks"]:
        checks.setdefault(each["check"], []).append(each)
    assert (answer["status"] == "fail") is (status == 1)
    return status, checks


def test_a_valid_configuration_passes_and_nothing_is_changed(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    before: Any = client.config_get("*")
    server = (*ANY_PORT, "--redis", redis_server.url, "--shards", "4", "--handler", "json:dumps")
    status, checks = told(capsys, *server)
    assert (status, checks["handlers"][0]["status"]) == (0, "ok")
    status, checks = told(capsys, *server, "--handler", "no_such_module:f")
    assert (status, [each["status"] for each in checks["handlers"]]) == (1, ["ok", "fail"])
    assert checks["redis"][0]["status"] == "ok"
    assert set(checks["redis"][0]) == {"check", "status", "need", "have", "fix"}
    assert client.keys() == []
    after: Any = client.config_get("*")
    assert after == before


@pytest.mark.parametrize("other", ["1", "3"])
def test_a_shard_with_data_of_another_version_fails(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str], other: str
) -> None:
    write_former_data(client)
    server = (*ANY_PORT, "--redis", redis_server.url, "--shards", "2")
    assert told(capsys, *server)[1]["data"][0]["status"] == "ok"
    client.hset("presence:{1}:meta", "version", other)
    (data,) = told(capsys, *server)[1]["data"]
    assert (data["status"], data["have"]) == ("fail", f"version {other}, 2 shards")


def test_all_problems_of_the_settings_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRESENCE_TIK", "1")
    status, checks = told(capsys, "--idle-timeout", "x", "--lease", "0")
    assert status == 1
    assert len(checks["settings"]) == 3
    assert "did you mean PRESENCE_TICK" in checks["settings"][0]["have"]
    assert checks["redis"][0]["status"] == "not tried"


def test_each_problem_is_printed_with_its_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *ANY_PORT, "--redis", f"unix://u:s3cret@{tmp_path}/r.sock"]) == 1
    out = capsys.readouterr().out
    lines = out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("fail       redis: "))
    assert lines[place + 1].startswith("           need: an answer")
    assert lines[place + 2].startswith("           fix: start it, or name another")
    assert sum("Redis does not answer" in line for line in lines) == 1
    assert lines[-1].startswith("1 fail, ")
    assert "s3cret" not in out
