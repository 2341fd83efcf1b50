"""``presence status`` against a real Valkey."""

import json

import pytest

from presence.cli.main import main
from presence.reader import PresenceReader
from presence.store.keys import Keys
from presence.store.redis_client import Redis
from tests.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("clean_environment")
LEASE_END_MS = 10**15  # never
UNREACHABLE = "redis://user:s3cret@127.0.0.1:1"


def test_status_prints_a_line_for_each_user_or_an_object(command: Command, client: Redis) -> None:
    session = {"session": "s1", "node": "n1", "login_ms": 1_700_000_000_000}
    away = {**session, "node": "n2", "away": True, "meta": '{"a":{"$bin":"00"}}'}
    alice = {"id": "5-1", "since_ms": 1_700_000_000_000, "sessions": {"phone": session}}
    bea = {"id": "5-1", "since_ms": 1, "state": {"id": "6-0", "since_ms": 1_700_000_000_000}}
    records = {"alice": alice, "bea": {**bea, "sessions": {"phone": away}}}
    client.hset("other:{0}:online", mapping={uid: json.dumps(record) for uid, record in records.items()})
    client.zadd("other:nodes", {"n1": 1, "n2": LEASE_END_MS})
    client.zadd("other:{0}:seen", {"bob": 1_700_000_060_000})
    words = ("status", "alice", "bea", "bob", "nobody", "--prefix", "other")
    assert command(*words).out.splitlines() == [
        "alice   unknown  online since 2023-11-14 22:13:20 UTC, but its nodes are silent: phone on n1",
        'bea     away     since 2023-11-14 22:13:20 UTC  phone on n2  {"a":{"$bin":"00"}}',
        "bob     offline  last seen 2023-11-14 22:14:20 UTC",
        "nobody  offline  never seen, or long ago",
    ]
    states = json.loads(command(*words, "--json").out)
    listed = command("status", "--list", "--json", "--prefix", "other")
    assert json.loads(listed.out) == {uid: states[uid] for uid in records}
    assert (states["alice"]["id"], states["alice"]["sessions"]) == ("5-1", [{"device": "phone", **session}])
    meta = {"a": {"$bin": "00"}}
    assert (states["bea"]["status"], states["bea"]["id"], states["bea"]["meta"]) == ("away", "6-0", meta)
    assert states["bea"]["sessions"] == [{"device": "phone", **away, "meta": meta}]


def put_online(client: Redis, uids: list[str]) -> None:
    client.hset("presence:meta", "shards", 2)
    session = {"session": "s1", "node": "n1", "login_ms": 1_700_000_000_000}
    record = json.dumps({"id": "5-1", "since_ms": 1_700_000_000_000, "sessions": {"": session}})
    keys = Keys(shards=2)
    client.zadd(keys.nodes, {"n1": LEASE_END_MS})
    for uid in uids:
        client.hset(keys.online(keys.shard(uid)), uid, record)


def test_count_prints_how_many_are_online(command: Command, client: Redis) -> None:
    put_online(client, [f"u{n}" for n in range(7)])
    assert command("status", "--count") == (0, "7\n", "")
    assert command("status", "--count", "--json").out == '{"online":7}\n'


def test_list_prints_a_line_for_each_online_user(command: Command, client: Redis) -> None:
    put_online(client, ["ann", "b\x1bb"])
    assert sorted(command("status", "--list").out.splitlines()) == [
        "ann  online   since 2023-11-14 22:13:20 UTC  default device on n1",
        r"b\u{1b}b  online   since 2023-11-14 22:13:20 UTC  default device on n1",
    ]


def test_conditions_of_a_list_and_of_a_count(command: Command, client: Redis) -> None:
    put_online(client, ["team-a:ann", "team-a:bob", "team-b:cyd"])
    states = json.loads(command("status", "--list", "--json", "--uid-prefix", "team-a:").out)
    assert sorted(states) == ["team-a:ann", "team-a:bob"]
    assert command("status", "--count", "--uid-prefix", "team-a:").out == "2\n"
    assert command("status", "--count", "--node", "n1", "--status", "online").out == "3\n"
    assert command("status", "--count", "--class", "phone").out == "0\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("ann", "--class", "phone"), "conditions are for --count and --list"),
        (("--list", "--class", "x" * 33), "--class is longer than 32 bytes"),
    ],
)
def test_conditions_that_make_no_sense_are_refused(
    command: Command, words: tuple[str, ...], complaint: str
) -> None:
    status, _, err = command("status", *words)
    assert status == 2
    assert complaint in err


def test_a_user_in_two_pages_is_listed_once(
    command: Command, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_online(client, ["ann", "bob"])
    pages = PresenceReader.pages
    monkeypatch.setattr(PresenceReader, "pages", lambda *a, **k: [*pages(*a, **k), *pages(*a, **k)])
    assert len(command("status", "--list").out.splitlines()) == 2
    assert command("status", "--count", "--uid-prefix", "ann").out == "1\n"


@pytest.mark.parametrize("count", [0, 1, 3000])
def test_list_as_json_is_one_object_of_states(command: Command, client: Redis, count: int) -> None:
    uids = [f"u{n}" for n in range(count)]
    put_online(client, uids)
    states = json.loads(command("status", "--list", "--json").out)
    assert sorted(states) == sorted(uids)
    assert {state["status"] for state in states.values()} <= {"online"}


@pytest.mark.parametrize(
    "words",
    [
        *("status u", "status --count", "status --list", "tail", "kick u", "forget u", "nodes", "explain u"),
        *("followups list", "followups run", "timers list --kind queue --name t"),
    ],
)
def test_unreachable_redis_is_named_without_its_password(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = words.split()
    assert main([*command, "--redis", UNREACHABLE]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert " Redis at redis://user:***@127.0.0.1:1: " in line
    assert "s3cret" not in line
    assert main(command) == 2
    assert f"{command[0]} needs the servers' Redis: give --redis URL" in capsys.readouterr().err
