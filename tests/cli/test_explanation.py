"""Users explained from a real Redis and nodes that answer, or do not."""

import json
from pathlib import Path
from typing import Any

import pytest

from presence.core.profiles import Profile
from presence.ops.explain import Explainer
from presence.store.client import Redis
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_store import RedisLeaseTable
from tests.store.driving import NOW_MS, Hand, login, update
from tests.store.servers import BINARIES, Server
from tests.support.nodes_that_answer import answer, listening, session

SEEN = "2023-11-14 22:13:20.000 UTC"  # NOW_MS


@pytest.fixture
def url(redis_server: EmbeddedRedis) -> str:
    return redis_server.url


def renew(url: str, node: str, **told: object) -> None:
    table = RedisLeaseTable(url, Keys(), lease_s=60)
    table.renew(node, 1, json.dumps(told), [])
    table.close()


def explain(url: str, uid: str = "ann", *here: dict[str, Any], wait_s: float = 10.0) -> dict[str, Any]:
    with Explainer(url, wait_s=wait_s) as explainer:
        told = explainer.explain(uid, here)
    json.dumps(told)
    return told


def test_somebody_online_and_then_away_is_told_whole(url: str, hand: Hand, client: Redis) -> None:
    hand.apply(login("ann", "s1"))
    there = session("n1", "s1")
    with listening(url, "n1", answer("n1", there)):
        told = explain(url)
    assert (told["uid"], told["redis"], told["notes"]) == ("ann", None, [])
    assert told["state"]["status"] == "online"
    assert (told["event"]["id"], told["event"]["type"]) == (told["state"]["id"], "online")
    assert (told["event_missing"], told["online_event"]) == (None, None)
    assert told["why"] == f"online since {SEEN}: the default device at node n1 logged in at {SEEN}"
    assert told["sessions"] == [{**there, "on_record": True}]
    assert told["nodes"] == [{"node": "n1", "status": "alive", "answer": "answered", "version": "0.1.0"}]
    hand.apply(update("ann", "s1", profile=Profile(True, '{"mood":{"$bin":"00"}}')))
    with listening(url, "n1") as questions:
        told = explain(url, "ann", answer("n1", there))
        client.xtrim(Keys().events(0), maxlen=1, approximate=False)
        trimmed = explain(url, "ann", answer("n1", there))
    assert questions == [], "who has answered already is not asked"
    assert (told["nodes"][0]["answer"], told["sessions"]) == ("answered", [{**there, "on_record": True}])
    assert (told["event"]["type"], told["online_event"]["type"]) == ("away", "online")
    assert told["state"]["meta"] == told["event"]["meta"] == {"mood": {"$bin": "00"}}
    assert told["why"].startswith(f"away since {SEEN}: set by the default device at node n1")
    assert (trimmed["event"]["type"], trimmed["online_event"]) == ("away", None)
    assert "; the event is no longer in the stream, which begins at 20" in trimmed["why"]


def test_a_damaged_event_counts_as_lost(url: str, client: Redis) -> None:
    client.zadd(Keys().seen(0), {"ann": NOW_MS})
    fields = {"type": "offline", "uid": "ann", "last_seen_ms": NOW_MS, "code": "x"}
    client.xadd(Keys().events(0), fields)  # type: ignore[arg-type]  # redis-py's: a dict is invariant
    told, stranger = explain(url), explain(url, '"*')
    assert (told["event"], told["event_missing"]) == (None, "not_found")
    assert (stranger["event"], stranger["event_missing"]) == (None, "never_seen")


def test_a_session_that_is_not_on_record_is_told(url: str, hand: Hand) -> None:
    with listening(url, "n1", answer("n1", session("n1", "s1"), waiting=2)) as questions:
        told = explain(url)
    assert [each["on_record"] for each in told["sessions"]] == [False]
    (note,) = told["notes"]
    assert note.endswith("it is not written to Redis yet; 2 changes are queued there")
    assert len(questions) == 2, "it is looked at again before it is told"


def test_a_node_that_says_nothing_is_named_in_time(url: str, hand: Hand) -> None:
    hand.apply(login("ann", "s1"))
    with listening(url, "n1"):
        told = explain(url, wait_s=0.2)
    assert [(each["node"], each["answer"]) for each in told["nodes"]] == [("n1", "no_answer")]
    (note,) = told["notes"]
    assert note.startswith("node n1, which has the default device, did not answer: ")


def test_silent_dead_and_forgotten_nodes_are_told_apart(url: str, hand: Hand, client: Redis) -> None:
    hand.apply(login("ann", "s1"))
    renew(url, "n2")
    renew(url, "n3")
    client.zadd("presence:nodes", {"n2": 1000, "n3": 1000})
    table = RedisLeaseTable(url, Keys(), lease_s=60)
    table.claim("n3", "1", "1 n2 1")
    table.claim("n1", "1", "")
    table.close()
    client.zrem("presence:nodes", "n1")
    told = explain(url)
    found = [(each["node"], each["status"], each["answer"]) for each in told["nodes"]]
    assert found == [
        ("n1", "gone", "not_listening"),
        ("n2", "silent", "not_listening"),
        ("n3", "dead", "not_listening"),
    ]
    assert told["state"]["status"] == "unknown"
    assert told["why"].startswith(f"unknown: online since {SEEN}")


def test_without_redis_what_is_known_here_is_told() -> None:
    told = explain("redis://user:hunter22@127.0.0.1:1/0", "ann", answer("n1", session("n1", "s1")))
    assert "127.0.0.1:1" in told["redis"]
    assert "hunter22" not in json.dumps(told)
    assert (told["state"], told["event"], told["event_missing"]) == (None, None, "redis")
    assert told["why"] == (
        "not known: Redis cannot be reached; there is a session of the default device at node n1"
    )
    assert [(each["session"], each["on_record"]) for each in told["sessions"]] == [("s1", None)]
    assert told["nodes"] == [{"node": "n1", "status": "unknown", "answer": "answered", "version": None}]


@pytest.mark.parametrize("uid", ["", "a" * 129, "\x1b[2J", "a\nb", "ä" * 65, "{0}"])
def test_what_is_no_uid_is_refused(uid: str) -> None:
    with Explainer("unix:///nowhere") as explainer, pytest.raises(ValueError, match="is not a valid uid"):
        explainer.explain(uid)


def test_after_a_restart_of_redis_the_first_call_succeeds(tmp_path: Path) -> None:
    binary = BINARIES["embedded"]()
    assert binary is not None
    server = Server(binary, tmp_path, keep=True)
    try:
        server.client.zadd(Keys().seen(0), {"ann": NOW_MS})
        with Explainer(server.url) as explainer:
            assert explainer.explain("ann")["event_missing"] == "trimmed"
            for _ in range(2):
                server.kill()
                assert explainer.explain("ann")["redis"] is not None
                server.start()
                assert explainer.explain("ann")["event_missing"] == "trimmed"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("key", "field", "value", "redis"),
    [
        ("presence:meta", "shards", "many", "presence:meta: b'many' is not a number of shards"),
        ("presence:{0}:online", "ann", '{"id":"x","since_ms":1,"sessions":{"":{"node":7}}}', None),
    ],
)
def test_damaged_data_are_no_reason_to_fail(
    url: str, client: Redis, key: str, field: str, value: str, redis: str | None
) -> None:
    client.hset(key, field, value)
    told = explain(url, wait_s=0.1)
    assert told["redis"] == redis
    assert (told["event"], told["nodes"]) == (None, [])
