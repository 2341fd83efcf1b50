"""Every rule of the script `apply`, one test each, against a real server."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from presence.outbox import Gap
from presence.store.batches import Batch, Counter, Opening, StoreError
from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from presence.store.replies import News, NewsKind, Probe, Reply, Status, Superseded, Trace
from tests.store.driving import (
    NOW_MS,
    NOW_S,
    Hand,
    check_alternation,
    end,
    events,
    hold,
    listen,
    login,
    online_sessions,
    owned,
    probed,
    record,
    register,
    story,
)
from tests.store.servers import Server

KEYS = Keys()


@pytest.fixture
def a(store: RedisStore) -> Hand:
    hand = Hand(store, "a")
    assert hand.open().status is Status.OK
    return hand


@pytest.fixture
def b(store: RedisStore) -> Hand:
    hand = Hand(store, "b")
    assert hand.open().status is Status.OK
    return hand


def fence(server: Server, node: str) -> None:
    server.client.hset(KEYS.node(0, node), "fence", "1")
    generation: Any = server.client.hget(KEYS.node(0, node), "gen")
    server.client.hset(KEYS.traces(0), node, b"%b 0 1" % generation)


# What is a transition


def test_events_have_every_field_and_an_offline_one_names_its_online(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"), end("u", "s1", at_ms=NOW_MS + 9, last_seen_ms=NOW_MS + 7, code=201))
    online, offline = events(server.client)
    at = str(NOW_MS)
    assert {**online, "id": ""} == {
        **{"v": "1", "type": "online", "uid": "u", "code": "1", "reason": "login", "node": "a", "id": ""},
        **{"session": "s1", "device": "", "since_ms": at, "last_seen_ms": at, "at_ms": at},
    }
    assert offline.pop("id")
    assert offline == {
        **{"v": "1", "type": "offline", "uid": "u", "code": "201", "reason": "idle_timeout", "node": "a"},
        **{"session": "s1", "device": "", "since_ms": str(NOW_MS), "since_id": online["id"]},
        **{"last_seen_ms": str(NOW_MS + 7), "at_ms": str(NOW_MS + 9)},
    }


def test_the_same_login_again_changes_nothing(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"))
    before = record(server.client, "u")
    a.apply(login("u", "s1", age_s=3))
    assert record(server.client, "u") == before


def test_record_dates_the_login_by_its_age(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1", age_s=7))
    entry = record(server.client, "u")["sessions"][""]
    assert entry["arrived_ms"] - entry["login_ms"] == 7000
    assert abs(entry["arrived_ms"] / 1000 - time.time()) < 60
    assert (entry["node"], entry["generation"], entry["idle_timeout_ms"]) == ("a", 1, 30_000)


def test_offline_writes_seen_and_online_removes_it(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"), end("u", "s1", last_seen_ms=NOW_MS + 5))
    assert server.client.zscore(KEYS.seen(0), "u") == NOW_MS + 5
    a.apply(login("u", "s2"))
    assert server.client.zscore(KEYS.seen(0), "u") is None


def test_nobody_was_last_seen_before_he_came_or_went_before_he_was_seen(a: Hand, server: Server) -> None:
    """The two times of a node are rounded apart, and those of two nodes are by two clocks."""
    a.apply(login("u", "s1"), end("u", "s1", at_ms=NOW_MS, last_seen_ms=NOW_MS - 1))
    a.apply(login("u", "s2"), end("u", "s2", at_ms=NOW_MS - 90, last_seen_ms=NOW_MS - 100))
    for offline in events(server.client)[1::2]:
        assert offline["since_ms"] == offline["last_seen_ms"] == offline["at_ms"] == str(NOW_MS)
    assert server.client.zscore(KEYS.seen(0), "u") == NOW_MS


def test_seen_is_trimmed_by_its_retention(server: Server) -> None:
    store = RedisStore(server.url, Shape(KEYS, maxlen=100, seen_retention_ms=1000))
    server.client.zadd(KEYS.seen(0), {"old": 1, "fresh": time.time() * 1000 + 60_000})
    Hand(store, "a").open()
    store.close()
    assert server.client.zrange(KEYS.seen(0), 0, -1) == [b"fresh"]


def test_stream_is_capped_roughly(server: Server) -> None:
    store = RedisStore(server.url, Shape(KEYS, maxlen=100, seen_retention_ms=10**10))
    a = Hand(store, "a")
    a.open()
    for i in range(10):
        a.apply(*(login(f"u{i}-{j}", "s") for j in range(100)))
    store.close()
    assert 100 <= server.client.xlen(KEYS.events(0)) < 400


def test_events_are_published_with_their_entry_id(a: Hand, server: Server) -> None:
    listener = listen(server.client, KEYS.online_channel, KEYS.offline_channel)
    a.apply(login("u", "s1"), end("u", "s1"))
    heard = [listener.get_message(timeout=1) for _ in range(2)]
    listener.close()
    stream = events(server.client)
    assert [m["channel"].decode() for m in heard] == [KEYS.online_channel, KEYS.offline_channel]
    assert [{k: str(v) for k, v in json.loads(m["data"]).items()} for m in heard] == stream


def test_a_record_in_another_spelling_is_the_same(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"))
    text: Any = server.client.hget(KEYS.online(0), "u")
    server.client.hset(KEYS.online(0), "u", text.replace(b":", b": "))
    a.apply(end("u", "another"))
    assert record(server.client, "u") is not None
    a.apply(end("u", "s1"))
    assert check_alternation(events(server.client)) == set()


def test_a_subscriber_to_a_pattern_hears(a: Hand, server: Server) -> None:
    listener = server.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]  # redis-py's
    listener.psubscribe("presence:*line")
    listener.get_message(timeout=1)
    a.apply(login("u", "s1"), end("u", "s1"))
    heard = [listener.get_message(timeout=1) for _ in range(2)]
    listener.close()
    assert [message["channel"].decode() for message in heard] == [KEYS.online_channel, KEYS.offline_channel]


def test_nothing_is_published_where_nobody_listens(a: Hand, server: Server) -> None:
    def published() -> int:
        stats = server.client.info("commandstats")
        return int(stats.get("cmdstat_publish", {}).get("calls", 0))

    before = published()
    a.apply(login("u", "s1"), end("u", "s1"))
    assert published() == before
    watched = (KEYS.watchers_channel(0), KEYS.user_channel("v"))
    listener = listen(server.client, KEYS.offline_channel, *watched)
    a.apply(login("u", "s2"), end("u", "s2"), login("v", "s3"))
    listener.close()
    assert published() == before + 2, "the offline event, and what is for whoever watches v"


# Numbers, generations, fence, history


def test_a_number_again_is_answered_from_the_cache(a: Hand, b: Hand, server: Server) -> None:
    b.apply(login("u", "sb"))
    batch = a.batch([login("u", "sa", age_s=5), login("w", "s1")], 2)
    first = a.send(batch)
    assert first.superseded == (Superseded("u", "", "sa", return_allowed=True),)
    assert a.send(batch) == first
    assert len(events(server.client)) == 2


REFUSED: dict[str, tuple[Callable[[Hand], object], Callable[[Hand], Reply], Status, int]] = {
    "a missing number": (
        lambda _: None,
        lambda a: a.send(a.batch([login("u", "s1")], 3)),
        Status.GAP,
        1,
    ),
    "a generation that is not there yet": (
        lambda a: setattr(a, "generation", 2),
        lambda a: a.apply(login("u", "s1")),
        Status.UNKNOWN,
        1,
    ),
    "an opening of a lower generation": (lambda a: a.open(5), lambda a: a.open(4), Status.UNKNOWN, 5),
    "another history": (
        lambda a: setattr(a, "replication_id", "0" * 40),
        lambda a: a.apply(login("u", "s1")),
        Status.HISTORY,
        1,
    ),
    "no history": (
        lambda a: setattr(a, "replication_id", ""),
        lambda a: a.apply(login("u", "s1")),
        Status.HISTORY,
        1,
    ),
    "no counter": (
        lambda a: a.store._scripting.client("").flushall(),
        lambda a: a.apply(login("u", "s1")),
        Status.UNKNOWN,
        0,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_changes_nothing_and_says_what_stands(a: Hand, server: Server, name: str) -> None:
    before, tell, status, generation = REFUSED[name]
    before(a)
    keys = server.client.dbsize()
    reply = tell(a)
    assert (reply.status, reply.generation, reply.told) == (status, generation, ())
    assert reply.replication_id == server.client.info("replication")["master_replid"]
    assert (events(server.client), server.client.dbsize()) == ([], keys)


def test_an_opening_again_gets_the_same_answer(a: Hand) -> None:
    a.apply(login("u", "s1"))
    first = a.open(2)
    assert first.opened is not None
    assert first.opened.trail[0].counter == Counter("a", 1, 2)
    assert a.open(2) == first


def test_an_opening_tells_what_the_batch_before_was_answered(a: Hand, b: Hand) -> None:
    b.apply(login("u", "sb"))
    a.apply(login("u", "sa", age_s=5))
    opened = a.open(2).opened
    assert opened is not None
    assert opened.trail[0].superseded == (Superseded("u", "", "sa", return_allowed=True),)


def test_an_opening_reads_the_counter_of_the_id_before(a: Hand, store: RedisStore) -> None:
    a.apply(login("u", "s1"))
    opened = Hand(store, "a2").open(before="a").opened
    assert opened is not None
    assert opened.trail[0].counter == Counter("a", 1, 2)


def test_an_opening_names_the_others(a: Hand, b: Hand, server: Server) -> None:
    fence(server, "b")
    opened = Hand(a.store, "c").open().opened
    assert opened is not None
    assert opened.others == {"a": Trace(1, False, False), "b": Trace(1, False, True)}


def test_an_opening_writes_the_gap(a: Hand, server: Server) -> None:
    a.open(2, gap=Gap(17, 1000, 2000, 0.0))
    (entry,) = events(server.client)
    entry.pop("id")
    gap = {"v": "1", "type": "gap", "node": "a", "dropped": "17", "from_ms": "1000", "to_ms": "2000"}
    assert entry == gap


def test_entry_ids_go_on_above_the_floor(a: Hand, server: Server) -> None:
    ahead = int(time.time() * 1000) + 3_600_000
    a.open(2, floor=f"{ahead}-7")
    a.apply(login("u", "s1"))
    (entry,) = events(server.client)
    assert entry["id"] == f"{ahead}-8"


def test_a_reply_has_the_highest_entry_id(a: Hand, server: Server) -> None:
    reply = a.apply(login("u", "s1"), login("w", "s2"))
    assert reply.last_id == events(server.client)[-1]["id"]


# Sessions of other nodes


def test_a_registration_adopts_the_same_session(a: Hand, b: Hand, server: Server) -> None:
    a.apply(login("u", "s1", age_s=60))
    before = record(server.client, "u")["sessions"][""]
    b.apply(register("u", "s1"))
    after = record(server.client, "u")["sessions"][""]
    assert after == {**before, "node": "b", "generation": 1}
    assert (owned(server.client, "a"), owned(server.client, "b")) == (set(), {("u", "", "s1")})
    assert probed(a.store, "a").inbox == ()


def test_a_displaced_session_is_in_its_owners_inbox(a: Hand, b: Hand) -> None:
    a.apply(login("u", "sa", "phone", age_s=60))
    b.apply(login("u", "sb", "phone"))
    probe = probed(a.store, "a")
    # It arrived a minute late, so who of the two is the younger is not sure.
    assert probe.inbox == (News(NewsKind.DISPLACED, "u", "phone", "sa", "b", return_allowed=True),)
    assert probe.inbox_n == 1


def test_the_inbox_gives_what_was_not_read_and_one_that_began_anew_is_given_whole(a: Hand, b: Hand) -> None:
    a.apply(login("u", "s1"), login("w", "s2"))
    b.apply(login("u", "s3"), login("w", "s4"))
    read = [[each.uid for each in probed(a.store, "a", n).inbox] for n in (1, 2, 30)]
    assert read == [["w"], [], ["u", "w"]]


def test_the_inbox_keeps_the_newest_fifty(a: Hand, b: Hand) -> None:
    a.apply(*(login(f"u{i}", f"a{i}") for i in range(60)))
    b.apply(*(login(f"u{i}", f"b{i}") for i in range(60)))
    probe = probed(a.store, "a")
    assert [d.uid for d in probe.inbox] == [f"u{i}" for i in range(10, 60)]
    assert probe.inbox_n == 60


def test_a_displacement_is_published_to_its_owner(a: Hand, b: Hand, server: Server) -> None:
    listener = listen(server.client, KEYS.control_channel("a"))
    a.apply(login("u", "sa"))
    b.apply(login("u", "sb"))
    message = listener.get_message(timeout=1)
    listener.close()
    assert message is not None
    assert json.loads(message["data"]) == {
        **{"type": "displaced", "n": 1, "uid": "u", "device": "", "session": "sa", "by": "b"},
        "return_allowed": True,
    }


@pytest.mark.parametrize(
    ("standing_s", "late_s", "displacing_s", "allowed"),
    [(60, 0, 0, False), (2, 0, 0, True), (60, 0, 6, True), (60, 6, 0, True)],
    ids=["both sure", "displaced login is young", "displacing login is late", "displaced login was late"],
)
def test_the_goodbye_allows_a_return_when_the_order_is_unsure(
    a: Hand, b: Hand, server: Server, standing_s: float, late_s: float, displacing_s: float, allowed: bool
) -> None:
    a.apply(login("u", "sa"))
    text = record(server.client, "u")
    entry = text["sessions"][""]
    entry["login_ms"] -= int(standing_s * 1000)
    entry["arrived_ms"] = entry["login_ms"] + int(late_s * 1000)
    server.client.hset(KEYS.online(0), "u", json.dumps(text))
    b.apply(login("u", "sb", age_s=displacing_s))
    assert [d.return_allowed for d in probed(a.store, "a").inbox] == [allowed]


@pytest.mark.parametrize(
    ("reached_ms", "allowed"),
    [(40, False), (20, True), (0, True), (10**6, True)],
    ids=["surely later", "perhaps at once", "nothing is known", "a clock that was set back"],
)
def test_the_order_is_sure_if_the_clock_had_come_so_far_when_the_later_login_came(
    a: Hand, b: Hand, server: Server, reached_ms: int, allowed: bool
) -> None:
    a.apply(login("u", "sa"))
    came_ms = record(server.client, "u")["sessions"][""]["login_ms"]
    time.sleep(0.05)
    batch = b.batch([login("u", "sb", age_s=0.02)], b.n + 1)
    b.send(replace(batch, sent_ms=came_ms + reached_ms if reached_ms else 0))
    assert [d.return_allowed for d in probed(a.store, "a").inbox] == [allowed]


# Ends that restore


def test_a_restoring_end_tells_the_period_that_redis_lost(a: Hand, server: Server) -> None:
    a.apply(end("u", "s1", at_ms=NOW_MS + 9, last_seen_ms=NOW_MS), restores=True)
    assert story(server.client) == [("online", "u", "returned"), ("offline", "u", "logout")]
    online, offline = events(server.client)
    assert (offline["since_id"], offline["since_ms"]) == (online["id"], str(NOW_MS))
    assert online_sessions(server.client) == set()


# Retirement and probe


def test_retire_says_when_they_were_seen_at_the_latest(a: Hand, server: Server) -> None:
    a.apply(login("ghost", "s1"))
    a.open(2)
    a.retire(latest_ms=NOW_MS + 1234)
    assert events(server.client)[-1]["last_seen_ms"] == str(NOW_MS + 1234)


def test_retire_leaves_a_session_that_moved_to_another_node(a: Hand, b: Hand, server: Server) -> None:
    a.apply(login("u", "s1"))
    b.apply(register("u", "s1"))
    server.client.hset(KEYS.node(0, "a"), "u ", "1 s1")  # as if the hash had not been kept in step
    a.open(2)
    a.retire()
    assert online_sessions(server.client) == {("u", "", "s1")}
    assert owned(server.client, "a") == set()


def test_retire_covers_a_large_hash_in_bounded_calls(a: Hand, server: Server) -> None:
    for i in range(10):
        a.apply(*(login(f"u{i}-{j}", "s") for j in range(300)))
    a.open(2)
    calls, cursor = 0, "start"
    while cursor != "0":
        reply = a.retire("0" if cursor == "start" else cursor)
        cursor, calls = reply.cursor, calls + 1
    assert calls > 3
    assert online_sessions(server.client) == set()


def test_probe_tells_how_things_stand(a: Hand, b: Hand, server: Server) -> None:
    a.apply(login("u", "s1"))
    probe = probed(a.store, "a")
    assert probe.counter == Counter("a", 1, 2)
    assert not probe.fenced
    assert probe.others == {"b": Trace(1, False, False)}
    assert probe.last_id == events(server.client)[-1]["id"]
    assert probe.replication_id == a.replication_id


def test_probe_of_an_empty_redis(store: RedisStore) -> None:
    probe = probed(store, "a")
    assert (probe.counter, probe.last_id, probe.others) == (Counter("a", 0, 0), "0-0", {})


# Calls of several shards


def test_steps_of_several_shards_are_answered_in_order(server: Server) -> None:
    store = RedisStore(server.url, Shape(Keys(shards=16), maxlen=1000, seen_retention_ms=10**10))
    steps = [Batch(s, Counter("a", s + 1, 1), "", (), NOW_S, opening=Opening("a")) for s in range(16)]
    replies = store.apply(steps)
    probes = store.probe("a", dict.fromkeys(range(16), 0))
    store.close()
    assert all(isinstance(reply, Reply) for reply in replies)
    generations = [probe.counter.generation for probe in probes.values() if isinstance(probe, Probe)]
    assert generations == list(range(1, 17))


def test_a_shard_that_cannot_be_applied_does_not_hold_up_the_others(
    store: RedisStore, server: Server
) -> None:
    server.client.set(KEYS.node(1, "a"), "not a hash")
    steps = [Batch(s, Counter("a", 1, 1), "", (), NOW_S, opening=Opening("a")) for s in range(3)]
    replies = store.apply(steps)
    assert isinstance(replies[1], StoreError)
    assert [isinstance(reply, Reply) for reply in replies] == [True, False, True]


def test_the_cached_reply_does_not_grow_with_resyncs(a: Hand, server: Server) -> None:
    sizes = []
    for generation in range(2, 30):
        a.open(generation)
        sizes.append(server.client.hstrlen(KEYS.node(0, "a"), "reply"))
    assert 0 < max(sizes[4:]) < min(sizes[4:]) + 8  # a longer number; the trail has its full length


# Logins held back behind ends that wait


def test_marks_go_with_the_login_and_the_last_batch_that_was_held(a: Hand, server: Server) -> None:
    a.apply(hold("u", "s1"), hold("v", "s2"))
    assert server.client.smembers(KEYS.holding(0)) == {b"a"}
    a.apply(login("u", "s1"))
    a.send(replace(a.batch([login("v", "s2")], a.n + 1), settled=True))
    assert server.client.smembers(KEYS.holding(0)) == set()
    names: Any = server.client.hkeys(KEYS.node(0, "a"))
    assert [name for name in names if name.endswith(b"held")] == []


def test_a_damaged_mark_counts_as_absent(a: Hand, b: Hand, server: Server) -> None:
    b.apply(login("u", "sb"))
    a.apply(hold("u", "sa", "desk"))
    server.client.hset(KEYS.node(0, "a"), "u  held", '[["desk"], 7, {"x": 1}]')
    b.apply(end("u", "sb"))
    assert [kind for kind, *_ in story(server.client)] == ["online", "offline"]
