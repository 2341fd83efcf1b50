"""``presence status`` against a real Valkey."""

import json

import pytest

from presence.cli import main
from presence.embedded import EmbeddedRedis
from presence.store.client import Redis
from presence.store.keys import Keys

pytestmark = pytest.mark.usefixtures("clean_environment")
LEASE_END_MS = 10**15  # never
UNREACHABLE = "redis://user:s3cret@127.0.0.1:1"


def put_alice_online(client: Redis, prefix: str = "presence") -> None:
    session = {"session": "s1", "node": "n1", "generation": 1, "login_ms": 1_700_000_000_000}
    record = {"id": "5-1", "since_ms": 1_700_000_000_000, "sessions": {"phone": session}}
    client.hset(f"{prefix}:{{0}}:online", "alice", json.dumps(record))
    client.zadd(f"{prefix}:nodes", {"n1": LEASE_END_MS})


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


def test_status_says_whose_node_is_silent(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    put_alice_online(client)
    client.zadd("presence:nodes", {"n1": 1})
    assert main(["status", "alice", "--redis", redis_server.url]) == 0
    line = "alice  unknown  online since 2023-11-14 22:13:20 UTC, but silent: phone on n1\n"
    assert capsys.readouterr().out == line


def test_status_as_json_is_an_object_of_states(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    put_alice_online(client, "other")
    assert main(["status", "--json", "alice", "--redis", redis_server.url, "--prefix", "other"]) == 0
    state = json.loads(capsys.readouterr().out)["alice"]
    session = {"device": "phone", "session": "s1", "node": "n1", "login_ms": 1_700_000_000_000}
    assert (state["status"], state["id"], state["sessions"]) == ("online", "5-1", [session])


def put_bea_away(client: Redis) -> None:
    session = {"session": "s1", "node": "n1", "login_ms": 1, "away": True, "meta": '{"a":{"$bin":"00"}}'}
    record = {"id": "5-1", "since_ms": 1, "state": {"id": "6-0", "since_ms": 1_700_000_000_000}}
    client.hset("presence:{0}:online", "bea", json.dumps({**record, "sessions": {"phone": session}}))
    client.zadd("presence:nodes", {"n1": LEASE_END_MS})


def test_status_shows_who_is_away_and_what_is_said(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    put_bea_away(client)
    assert main(["status", "bea", "--redis", redis_server.url]) == 0
    line = 'bea  away     since 2023-11-14 22:13:20 UTC  phone on n1  {"a":{"$bin":"00"}}\n'
    assert capsys.readouterr().out == line


@pytest.mark.parametrize("flags", [("bea",), ("--list",)])
def test_status_as_json_has_away_and_meta(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    put_bea_away(client)
    assert main(["status", "--json", *flags, "--redis", redis_server.url]) == 0
    state = json.loads(capsys.readouterr().out)["bea"]
    said = {"a": {"$bin": "00"}}
    assert (state["status"], state["id"], state["meta"]) == ("away", "6-0", said)
    assert (state["sessions"][0]["away"], state["sessions"][0]["meta"]) == (True, said)


def put_online(client: Redis, uids: list[str]) -> None:
    client.hset("presence:meta", "shards", 2)
    session = {"session": "s1", "node": "n1", "login_ms": 1_700_000_000_000}
    record = json.dumps({"id": "5-1", "since_ms": 1_700_000_000_000, "sessions": {"": session}})
    keys = Keys(shards=2)
    client.zadd(keys.nodes, {"n1": LEASE_END_MS})
    for uid in uids:
        client.hset(keys.online(keys.shard(uid)), uid, record)


def test_count_prints_how_many_are_online(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    put_online(client, [f"u{n}" for n in range(7)])
    assert main(["status", "--count", "--redis", redis_server.url]) == 0
    assert main(["status", "--count", "--json", "--redis", redis_server.url]) == 0
    assert capsys.readouterr().out.splitlines() == ["7", '{"online":7}']


def test_list_prints_a_line_for_everybody_online(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    put_online(client, ["ann", "b\x1bb"])
    assert main(["status", "--list", "--redis", redis_server.url]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "ann  online   since 2023-11-14 22:13:20 UTC  default device on n1",
        r"b\x1bb  online   since 2023-11-14 22:13:20 UTC  default device on n1",
    ]


@pytest.mark.parametrize("count", [0, 1, 3000])
def test_list_as_json_is_one_object_of_states(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    uids = [f"u{n}" for n in range(count)]
    put_online(client, uids)
    assert main(["status", "--list", "--json", "--redis", redis_server.url]) == 0
    states = json.loads(capsys.readouterr().out)
    assert sorted(states) == sorted(uids)
    assert {state["status"] for state in states.values()} <= {"online"}


@pytest.mark.parametrize(
    "command",
    [
        ["status", "u"],
        ["status", "--count"],
        ["status", "--list"],
        ["tail"],
        ["kick", "u"],
        ["forget", "u"],
        ["nodes"],
    ],
    ids=" ".join,
)
def test_unreachable_redis_is_named_without_its_password(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--redis", UNREACHABLE]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("presence: cannot reach Redis at redis://user:***@127.0.0.1:1")
    assert "s3cret" not in line
