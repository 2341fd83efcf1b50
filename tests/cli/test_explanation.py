"""Users explained from a real Redis and nodes that answer or stay silent."""

import json
from pathlib import Path
from typing import Any

import pytest

from presence.core.profiles import Profile
from presence.ops.explain import Explainer
from presence.store.embedded import EmbeddedRedis, find_binary
from presence.store.keys import Keys
from presence.store.redis_client import Redis
from presence.store.redis_store import RedisLeaseTable
from tests.store.driving import NOW_MS, Hand, login, update
from tests.store.servers import Server
from tests.support.nodes_that_answer import answer, listening, session

SEEN = "2023-11-14 22:13:20.000 UTC"  # NOW_MS


@pytest.fixture
def url(redis_server: EmbeddedRedis) -> str:
    return redis_server.url


def renew(url: str, node: str, **info: object) -> None:
    table = RedisLeaseTable(url, Keys(), lease_s=60)
    table.renew(node, 1, json.dumps(info), [])
    table.close()


def explain(url: str, uid: str = "ann", *here: dict[str, Any], wait_s: float = 10.0) -> dict[str, Any]:
    with Explainer(url, wait_s=wait_s) as explainer:
        report = explainer.explain(uid, here)
    json.dumps(report)
    return report


def test_a_user_who_is_online_and_then_away_is_explained_fully(url: str, hand: Hand, client: Redis) -> None:
    hand.apply(login("ann", "s1"))
    there = session("n1", "s1")
    with listening(url, "n1", answer("n1", there)):
        report = explain(url)
    assert (report["uid"], report["redis"], report["notes"]) == ("ann", None, [])
    assert report["state"]["status"] == "online"
    assert (report["event"]["id"], report["event"]["type"]) == (report["state"]["id"], "online")
    assert (report["event_missing"], report["online_event"]) == (None, None)
    assert report["roster_users"] is None
    assert report["why"] == f"online since {SEEN}: the default device at node n1 logged in at {SEEN}"
    assert report["sessions"] == [{**there, "on_record": True}]
    assert report["nodes"] == [{"node": "n1", "status": "alive", "answer": "answered", "version": "0.1.0"}]
    hand.apply(update("ann", "s1", profile=Profile("away", '{"mood":{"$bin":"00"}}')))
    with listening(url, "n1") as questions:
        report = explain(url, "ann", answer("n1", there))
        client.xtrim(Keys().events(0), maxlen=1, approximate=False)
        trimmed = explain(url, "ann", answer("n1", there))
    assert questions == [], "a node that has answered is not asked again"
    assert (report["nodes"][0]["answer"], report["sessions"]) == ("answered", [{**there, "on_record": True}])
    assert (report["event"]["type"], report["online_event"]["type"]) == ("away", "online")
    assert report["state"]["meta"] == report["event"]["meta"] == {"mood": {"$bin": "00"}}
    assert report["why"].startswith(f"away since {SEEN}: set by the default device at node n1")
    assert (trimmed["event"]["type"], trimmed["online_event"]) == ("away", None)
    assert "; the event is no longer in the stream, which begins at 20" in trimmed["why"]


def test_a_damaged_event_counts_as_lost(url: str, client: Redis) -> None:
    client.zadd(Keys().seen(0), {"ann": NOW_MS})
    fields = {"type": "offline", "uid": "ann", "last_seen_ms": NOW_MS, "code": "x"}
    client.xadd(Keys().events(0), fields, "5-0")  # type: ignore[arg-type]  # redis-py's: a dict is invariant
    client.hset(Keys().left(0), "ann", "201 5-0 0")
    report, stranger = explain(url), explain(url, '"*')
    assert (report["event"], report["event_missing"]) == (None, "not_found")
    assert (stranger["event"], stranger["event_missing"]) == (None, "never_seen")


def test_a_session_that_is_not_on_record_is_reported(url: str, hand: Hand) -> None:
    with listening(url, "n1", answer("n1", session("n1", "s1"), waiting=2)) as questions:
        report = explain(url)
    assert [each["on_record"] for each in report["sessions"]] == [False]
    (note,) = report["notes"]
    assert note.endswith("it is not written to Redis yet; 2 changes are queued there")
    assert len(questions) == 2, "the node is asked again before it is reported"


def test_a_node_that_does_not_answer_is_named_within_the_wait(url: str, hand: Hand) -> None:
    hand.apply(login("ann", "s1"))
    with listening(url, "n1"):
        report = explain(url, wait_s=0.2)
    assert [(each["node"], each["answer"]) for each in report["nodes"]] == [("n1", "no_answer")]
    (note,) = report["notes"]
    assert note.startswith("node n1, which has the default device, did not answer: ")


def test_silent_dead_and_removed_nodes_are_distinguished(url: str, hand: Hand, client: Redis) -> None:
    hand.apply(login("ann", "s1"))
    renew(url, "n2")
    renew(url, "n3")
    client.zadd("presence:nodes", {"n2": 1000, "n3": 1000})
    table = RedisLeaseTable(url, Keys(), lease_s=60)
    table.claim("n3", "1", "1 n2 1")
    table.claim("n1", "1", "")
    table.close()
    client.zrem("presence:nodes", "n1")
    report = explain(url)
    found = [(each["node"], each["status"], each["answer"]) for each in report["nodes"]]
    assert found == [
        ("n1", "gone", "not_listening"),
        ("n2", "silent", "not_listening"),
        ("n3", "dead", "not_listening"),
    ]
    assert report["state"]["status"] == "unknown"
    assert report["why"].startswith(f"unknown: online since {SEEN}")


def test_without_redis_only_local_sessions_are_reported() -> None:
    report = explain("redis://user:hunter22@127.0.0.1:1/0", "ann", answer("n1", session("n1", "s1")))
    assert "127.0.0.1:1" in report["redis"]
    assert "hunter22" not in json.dumps(report)
    assert (report["state"], report["event"], report["event_missing"]) == (None, None, "redis")
    assert report["why"] == (
        "not known: Redis cannot be reached; there is a session of the default device at node n1"
    )
    assert [(each["session"], each["on_record"]) for each in report["sessions"]] == [("s1", None)]
    assert report["nodes"] == [{"node": "n1", "status": "unknown", "answer": "answered", "version": None}]


@pytest.mark.parametrize("uid", ["", "a" * 129, "\x1b[2J", "a\nb", "ä" * 65, "{0}"])
def test_an_invalid_uid_is_refused(uid: str) -> None:
    with Explainer("unix:///nowhere") as explainer, pytest.raises(ValueError, match="is not a valid uid"):
        explainer.explain(uid)


def test_after_a_restart_of_redis_the_first_call_succeeds(tmp_path: Path) -> None:
    server = Server(find_binary(), tmp_path, keep=True)
    try:
        server.client.zadd(Keys().seen(0), {"ann": NOW_MS})
        with Explainer(server.url) as explainer:
            assert explainer.explain("ann")["event_missing"] == "not_kept"
            for _ in range(2):
                server.kill()
                assert explainer.explain("ann")["redis"] is not None
                server.start()
                assert explainer.explain("ann")["event_missing"] == "not_kept"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("key", "field", "value", "redis"),
    [
        (
            "presence:meta",
            "shards",
            "many",
            "presence:meta: b'many' is not a number of shards: redis-cli DEL presence:meta",
        ),
        ("presence:{0}:online", "ann", '{"id":"x","since_ms":1,"sessions":{"":{"node":7}}}', None),
    ],
)
def test_damaged_data_do_not_cause_a_failure(
    url: str, client: Redis, key: str, field: str, value: str, redis: str | None
) -> None:
    client.hset(key, field, value)
    report = explain(url, wait_s=0.1)
    assert report["redis"] == redis
    assert (report["event"], report["nodes"]) == (None, [])
