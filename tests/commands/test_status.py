"""``presence status`` against a real Valkey."""

import json

import pytest

from presence.cli import main
from presence.embedded import EmbeddedRedis
from presence.store.client import Redis

pytestmark = pytest.mark.usefixtures("clean_environment")
UNREACHABLE = "redis://user:s3cret@127.0.0.1:1"


def put_alice_online(client: Redis, prefix: str = "presence") -> None:
    session = {"session": "s1", "node": "n1", "generation": 1, "login_ms": 1_700_000_000_000}
    record = {"id": "5-1", "since_ms": 1_700_000_000_000, "sessions": {"phone": session}}
    client.hset(f"{prefix}:{{0}}:online", "alice", json.dumps(record))


def test_status_prints_a_line_for_each_user(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    put_alice_online(client)
    client.zadd("presence:{0}:seen", {"bob": 1_700_000_060_000})
    assert main(["status", "alice", "bob", "nobody", "--redis", redis_server.url]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "alice   online   since 2023-11-14 22:13:20 UTC  phone on n1",
        "bob     offline  last seen 2023-11-14 22:14:20 UTC",
        "nobody  offline  never seen, or long ago",
    ]


def test_status_as_json_is_an_object_of_states(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    put_alice_online(client, "other")
    assert main(["status", "--json", "alice", "--redis", redis_server.url, "--prefix", "other"]) == 0
    state = json.loads(capsys.readouterr().out)["alice"]
    session = {"device": "phone", "session": "s1", "node": "n1", "login_ms": 1_700_000_000_000}
    assert (state["status"], state["id"], state["sessions"]) == ("online", "5-1", [session])


def test_status_looks_into_the_shards_that_the_server_stored(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    client.hset("presence:meta", "shards", 16)
    client.zadd("presence:{3}:seen", {"carol": 1_700_000_000_000})  # CRC-32 of carol, modulo 16
    main(["status", "carol", "--redis", redis_server.url])
    assert "last seen 2023" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["status", "u"], ["tail"]])
def test_unreachable_redis_is_named_without_its_password(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--redis", UNREACHABLE]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("presence: cannot reach Redis at redis://user:***@127.0.0.1:1")
    assert "s3cret" not in line
