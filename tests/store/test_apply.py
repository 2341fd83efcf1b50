"""What the scripts write and answer, beyond the rules of test_rules.py: fields, numbers, inboxes, hints."""

import json
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from presence.common.errors import StoreError
from presence.core.profiles import PLAIN, Profile
from presence.outbox.overflow import SkippedChanges
from presence.outbox.replies import (
    NodeNotice,
    NodeNoticeKind,
    PeerTrace,
    Probe,
    Reply,
    ReplyStatus,
    Superseded,
)
from presence.outbox.steps import Batch, Counter, Opening
from presence.protocol.constants import META_TEXT_MAX_BYTES
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from presence.store.watch_reads import read_snapshot
from presence.watching.user_states import DEVICES_META_MAX_BYTES, read_entry
from tests.store.driving import (
    NOW_MS,
    NOW_S,
    Event,
    Hand,
    brief_events,
    check_alternation,
    end,
    events,
    hold,
    listen,
    login,
    online_sessions,
    owned,
    play,
    probed,
    record,
    register,
    rows,
    update,
)
from tests.store.servers import Server
from tests.support.script_texts import changed, little_room

KEYS = Keys()
AWAY, META = Profile("away"), Profile(meta='{"v":"é \\" 1"}')
AWAY_META = Profile("away", meta='{"v":2}')

# Steps as in test_rules.py, and the fields of each event, all of them if `v` is named. ``+9``: ms
# after NOW_MS; ``#0``: the id of the first event.
FIELDS = r"""
an online event and the offline one that names it
    a login u s1 & end u s1 at=9 seen=7 code=201
    -> v=1 type=online uid=u code=1 reason=login node=a session=s1 device= since_ms=+0 last_seen_ms=+0
    at_ms=+0 | v=1 type=offline uid=u code=201 reason=idle_timeout node=a session=s1 device= since_ms=+0
    since_id=#0 last_seen_ms=+7 at_ms=+9
an away event
    a login u s1 phone as=é\"1 & update u s1 phone code=3 at=9 as=away,é\"1
    -> type=online meta="é\"1"
    | v=1 type=away uid=u code=3 reason=away node=a session=s1 device=phone since_ms=+0 since_id=#0 at_ms=+9
    last_seen_ms=+9 status=away status_ms=+9 meta="é\"1"
a return from away starts a new status
    a login u s1 & update u s1 as=away & update u s1 at=5
    -> type=online | type=away | code=4 reason=back status=online status_ms=+5 at_ms=+5
new meta does not change the time of the status
    a login u s1 & update u s1 as=away at=5 & update u s1 as=away,m at=9
    -> type=online | type=away | code=5 status=away status_ms=+5 at_ms=+9
a first update keeps the time of the login
    a login u s1 & update u s1 as=m at=5
    -> type=online | status=online status_ms=+0
a login or an end of another device changes the user's state
    a login u s1 phone age=9 & update u s1 phone as=away & login u s2 desk at=3 as=m;
    a end u s2 desk at=8 seen=4
    -> type=online | type=away | reason=back meta="m" session=s2 device=desk at_ms=+3
    | reason=away session=s2 device=desk at_ms=+8
an extended grace period is in the event of the end
    a login u s1 & end u s1 grace=12 & login w s2 x & login w s3 y & end w s2 x grace=24 & end w s3 y grace=48
    -> type=online | grace_ms=12 | type=online | grace_ms=48
# The two times of a node are rounded separately, and times of two nodes come from two clocks.
no user was last seen before the login or ended before being seen
    a login u s1 & end u s1 seen=-1 & login u s2 & end u s2 at=-90 seen=-100
    -> type=online | since_ms=+0 last_seen_ms=+0 at_ms=+0 | type=online | since_ms=+0 last_seen_ms=+0 at_ms=+0
a restoring end writes the period that Redis lost
    a restoring end u s1 at=9 seen=0
    -> reason=returned | reason=logout since_id=#0 since_ms=+0
a retirement gives the latest time at which sessions were seen
    a login u s1; a anew; a retires 1234
    -> type=online | reason=node_down last_seen_ms=+1234
"""


@pytest.fixture
def server(emptied_server: Server) -> Server:
    return emptied_server


def meaning(text: str, stream: list[Event]) -> str:
    if text.startswith("+"):
        return str(NOW_MS + int(text))
    return stream[int(text[1:])]["id"] if text.startswith("#") else text


@pytest.mark.parametrize(("name", "steps", "outcome"), rows(FIELDS))
def test_fields_of_events(a: Hand, server: Server, name: str, steps: str, outcome: str) -> None:
    for step in steps.split("; "):
        assert play({"a": a}, step).status is ReplyStatus.OK
    stream, expected = events(server.client), outcome.removeprefix("-> ").split(" | ")
    for event, text in zip(stream, expected, strict=True):
        fields = dict(each.split("=") for each in text.split())
        meant = {field: meaning(value, stream) for field, value in fields.items()}
        assert {field: event.get(field) for field in meant} == meant
        assert "v" not in meant or event.keys() == {*meant, "id"}


def test_an_opening_writes_the_gap(a: Hand, server: Server) -> None:
    a.open(2, gap=SkippedChanges(17, 1000, 2000, 0.0))
    (event,) = events(server.client)
    gap = {"v": "1", "type": "gap", "node": "a", "dropped": "17", "from_ms": "1000", "to_ms": "2000"}
    assert event == {**gap, "id": event["id"]}


def test_a_plain_record_has_its_exact_bytes(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1", "phone", age_s=7))
    a.apply(
        update("u", "s1", "phone", profile=PLAIN), register("u", "s1", "phone"), login("u", "s1", "phone")
    )
    text: Any = server.client.hget(KEYS.online(0), "u")
    its = record(server.client, "u")["sessions"]["phone"]
    assert text.decode() == (
        f'{{"id":"{events(server.client)[0]["id"]}","since_ms":{NOW_MS},"sessions":{{"phone":{{"session":"s1",'
        f'"node":"a","generation":1,"login_ms":{its["login_ms"]},"arrived_ms":{its["arrived_ms"]},'
        '"idle_timeout_ms":30000}}}'
    )
    assert its["arrived_ms"] - its["login_ms"] == 7000, "the login time is computed from its age"
    assert abs(its["arrived_ms"] / 1000 - time.time()) < 60
    assert len(events(server.client)) == 1


def test_the_record_names_the_entry_that_set_the_state(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"), update("u", "s1", profile=AWAY, at_ms=NOW_MS + 5))
    a.apply(update("u", "s1", profile=AWAY_META, at_ms=NOW_MS + 9))
    entry_id = events(server.client)[-1]["id"]
    assert record(server.client, "u")["state"] == {"id": entry_id, "since_ms": NOW_MS + 5}


def test_a_record_with_other_white_space_is_equivalent(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"))
    text: Any = server.client.hget(KEYS.online(0), "u")
    server.client.hset(KEYS.online(0), "u", text.replace(b":", b": "))
    a.apply(end("u", "another"))
    assert record(server.client, "u") is not None
    a.apply(end("u", "s1", last_seen_ms=NOW_MS + 5))
    assert check_alternation(events(server.client)) == set()
    assert server.client.zscore(KEYS.seen(0), "u") == NOW_MS + 5


def test_stream_and_last_seen_are_capped(server: Server) -> None:
    store = RedisStore(server.url, Shape(KEYS, maxlen=100, seen_retention_ms=1000))
    server.client.zadd(KEYS.seen(0), {"old": 1, "fresh": time.time() * 1000 + 60_000})
    server.client.hset(KEYS.left(0), mapping={"old": "100 1-0 0", "fresh": "100 2-0 0"})
    a = Hand(store, "a")
    a.open()
    for i in range(10):
        a.apply(*(login(f"u{i}-{j}", "s") for j in range(100)))
    store.close()
    assert server.client.zrange(KEYS.seen(0), 0, -1) == [b"fresh"]
    assert server.client.hkeys(KEYS.left(0)) == [b"fresh"]
    assert 100 <= server.client.xlen(KEYS.events(0)) < 400


# Publishing


def publish_calls(server: Server) -> int:
    stats = server.client.info("commandstats")
    return int(stats.get("cmdstat_publish", {}).get("calls", 0))


def received(listener: Any, count: int) -> list[tuple[str, Any]]:
    """Return channel and content of that many messages; assert that no more arrive."""
    messages = [listener.get_message(timeout=1) for _ in range(count)]
    assert None not in messages
    assert listener.get_message(timeout=0.05) is None
    listener.close()
    return [(each["channel"].decode(), json.loads(each["data"])) for each in messages]


@pytest.mark.parametrize("pattern", [False, True])
def test_events_are_published_with_their_entry_id(a: Hand, server: Server, *, pattern: bool) -> None:
    listener = listen(server.client, *(["other"] if pattern else [KEYS.online_channel, KEYS.offline_channel]))
    if pattern:
        listener.psubscribe("presence:*line")
        listener.get_message(timeout=1)
    a.apply(login("u", "s1"), end("u", "s1"))
    (first, online), (second, offline) = received(listener, 2)
    assert (first, second) == (KEYS.online_channel, KEYS.offline_channel)
    published_events = [{name: str(value) for name, value in each.items()} for each in (online, offline)]
    assert published_events == events(server.client)


def test_nothing_is_published_without_subscribers(a: Hand, server: Server) -> None:
    before = publish_calls(server)
    a.apply(login("u", "s1"), end("u", "s1"))
    assert publish_calls(server) == before
    listener = listen(server.client, KEYS.offline_channel, KEYS.watchers_channel(0), KEYS.user_channel("v"))
    a.apply(login("u", "s2"), end("u", "s2"), login("v", "s3"))
    assert [channel for channel, _ in received(listener, 2)] == [KEYS.offline_channel, KEYS.user_channel("v")]
    assert publish_calls(server) == before + 2


def test_a_subscriber_to_a_user_receives_every_entry_of_that_user(a: Hand, server: Server) -> None:
    listener = listen(server.client, KEYS.watchers_channel(0), KEYS.user_channel("u"))
    a.apply(login("u", "s1", profile=META), login("w", "s2"))
    a.apply(update("u", "s1", profile=AWAY_META), update("u", "s1", profile=AWAY, at_ms=NOW_MS + 1))
    a.apply(end("u", "s1", grace_ms=9000, at_ms=NOW_MS + 2), end("w", "s2"))
    hints = [hint for _, hint in received(listener, 4)]
    assert [hint["status"] for hint in hints] == ["online", "away", "away", "offline"]
    assert [hint["status_ms"] - NOW_MS for hint in hints] == [0, 0, 0, 2]
    added = {"status": "", "status_ms": ""}
    entries = [{**entry, **added} for entry in events(server.client) if entry["uid"] == "u"]
    assert [{**{name: str(value) for name, value in hint.items()}, **added} for hint in hints] == entries
    assert (hints[0]["at_ms"], hints[3]["grace_ms"]) == (NOW_MS, 9000), "numbers stay numbers"


def test_retirements_and_sweeps_publish_hints_too(a: Hand, b: Hand, server: Server) -> None:
    a.apply(login("u", "s1"))
    b.apply(login("w", "s2"))
    listener = listen(server.client, KEYS.watchers_channel(0), *map(KEYS.user_channel, "uw"))
    a.open(2)
    a.retire()
    a.fence("b")
    assert a.sweep("b").done
    assert [
        (hint["uid"], hint["status"], hint["reason"], hint["node"]) for _, hint in received(listener, 2)
    ] == [("u", "offline", "node_down", "a"), ("w", "offline", "node_down", "b")]


# Batch numbers, generations, fences, replication ids


def test_a_repeated_batch_number_is_answered_from_the_cache(a: Hand, b: Hand, server: Server) -> None:
    b.apply(login("u", "sb"))
    batch = a.batch([login("u", "sa", age_s=5), login("w", "s1")], 2)
    first = a.send(batch)
    assert first.superseded == (Superseded("u", "", "sa", return_allowed=True),)
    assert a.send(batch) == first
    assert len(events(server.client)) == 2
    assert first.last_id == events(server.client)[-1]["id"]
    opened = a.open(2).opened
    assert opened is not None
    assert (opened.batch_history[0].counter, opened.batch_history[0].superseded) == (
        Counter("a", 1, 2),
        first.superseded,
    )
    assert a.open(2).opened == opened


def log_in(a: Hand) -> Reply:
    return a.apply(login("u", "s1"))


REFUSED: dict[str, tuple[Callable[[Hand], object], Callable[[Hand], Reply], ReplyStatus, int]] = {
    "a missing number": (
        lambda _: None,
        lambda a: a.send(a.batch([login("u", "s1")], 3)),
        ReplyStatus.MISSING_BATCH,
        1,
    ),
    "a generation that is not there yet": (
        lambda a: setattr(a, "generation", 2),
        log_in,
        ReplyStatus.UNKNOWN,
        1,
    ),
    "an opening of a lower generation": (lambda a: a.open(5), lambda a: a.open(4), ReplyStatus.UNKNOWN, 5),
    "another history": (
        lambda a: setattr(a, "replication_id", "0" * 40),
        log_in,
        ReplyStatus.OTHER_REPLICATION,
        1,
    ),
    "no history": (lambda a: setattr(a, "replication_id", ""), log_in, ReplyStatus.OTHER_REPLICATION, 1),
    "no counter": (lambda a: a.store.commands("", [("FLUSHALL",)]), log_in, ReplyStatus.UNKNOWN, 0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_batch_changes_nothing_and_reports_the_counters(a: Hand, server: Server, name: str) -> None:
    before, send, status, generation = REFUSED[name]
    before(a)
    keys = server.client.dbsize()
    reply = send(a)
    assert (reply.status, reply.generation, reply.event_counts) == (status, generation, ())
    assert reply.replication_id == server.client.info("replication")["master_replid"]
    assert (events(server.client), server.client.dbsize()) == ([], keys)


def test_a_batch_of_users_with_too_large_records_is_refused_and_says_how_many_items_are_not_too_many(
    a: Hand, server: Server
) -> None:
    uids = [f"u{i}" for i in range(6)]
    for uid in uids:
        a.apply(login(uid, "s"), login(uid, "t", "phone"))  # two sessions each: some 330 bytes of record
    before = brief_events(server.client)
    ends = [change for uid in uids for change in (end(uid, "s"), end(uid, "t", "phone"))]
    with changed(little_room()):
        refused = a.apply(*ends)
        assert (refused.status, refused.fitting) == (ReplyStatus.HEAVY, 2), "of 600 bytes"
        assert brief_events(server.client) == before
        alone = a.apply(*ends[:2])
    assert alone.status is ReplyStatus.OK, "under the same number"
    assert brief_events(server.client) == [*before, ("offline", "u0", "logout")]
    assert a.apply(*ends[2:]).status is ReplyStatus.OK


def test_a_single_user_is_never_too_many(a: Hand, server: Server) -> None:
    a.apply(*(login("u", f"s{i}", f"device-{i}") for i in range(8)))
    with changed(little_room()):
        assert a.apply(*(end("u", f"s{i}", f"device-{i}") for i in range(8))).status is ReplyStatus.OK
    assert [kind for kind, _, _ in brief_events(server.client)] == ["online", "offline"]


def test_an_opening_reads_the_counter_of_the_previous_id_and_lists_the_other_nodes(a: Hand, b: Hand) -> None:
    a.apply(login("u", "s1"))
    b.fence("c")
    opened = Hand(a.store, "a2").open(before="a").opened
    assert opened is not None
    assert opened.batch_history[0].counter == Counter("a", 1, 2)
    assert opened.peer_traces == {
        "a": PeerTrace(1, False, True),  # from the opening
        "b": PeerTrace(1, False, False),
        "c": PeerTrace(0, False, True),
    }


def test_entry_ids_continue_above_the_floor(a: Hand, server: Server) -> None:
    ahead = int(time.time() * 1000) + 3_600_000
    a.open(2, floor=f"{ahead}-7")
    a.apply(login("u", "s1"))
    (entry,) = events(server.client)
    assert entry["id"] == f"{ahead}-8"


@pytest.mark.parametrize("how", [("XDEL", "ID"), ("XTRIM", "MAXLEN", "0")], ids=["XDEL", "XTRIM"])
def test_entries_deleted_by_hand_refuse_no_call(a: Hand, server: Server, how: tuple[str, ...]) -> None:
    ahead, key = int(time.time() * 1000) + 3_600_000, KEYS.events(0)  # as if within this millisecond
    client: Any = server.client
    client.xadd(key, {"type": "x"}, id=f"{ahead}-7")
    command, *words = how
    client.execute_command(command, key, *(f"{ahead}-7" if each == "ID" else each for each in words))
    a.apply(login("u", "s1"))
    assert [(each["id"], each["uid"]) for each in events(server.client)] == [(f"{ahead}-8", "u")]


def test_the_cached_reply_does_not_grow_with_resyncs(a: Hand, server: Server) -> None:
    sizes = []
    for generation in range(2, 30):
        a.open(generation)
        sizes.append(server.client.hstrlen(KEYS.node(0, "a"), "reply"))
    assert 0 < max(sizes[4:]) < min(sizes[4:]) + 8  # a longer number; the history has its full length


def test_a_probe_reports_counters_and_other_nodes(a: Hand, b: Hand, server: Server) -> None:
    empty = probed(a.store, "absent")
    assert (empty.counter, empty.last_id) == (Counter("absent", 0, 0), "0-0")
    a.apply(login("u", "s1"))
    probe = probed(a.store, "a")
    assert probe.counter == Counter("a", 1, 2)
    assert not probe.fenced
    assert probe.peer_traces == {"b": PeerTrace(1, False, False)}
    assert probe.last_id == events(server.client)[-1]["id"]
    assert probe.replication_id == a.replication_id


def test_steps_of_several_shards_are_answered_in_order_and_fail_separately(server: Server) -> None:
    store = RedisStore(server.url, Shape(Keys(shards=16), maxlen=1000, seen_retention_ms=10**10))
    server.client.set(KEYS.node(5, "a"), "not a hash")
    steps = [Batch(s, Counter("a", s + 1, 1), "", (), NOW_S, opening=Opening("a")) for s in range(16)]
    replies = store.apply(steps)
    probes = store.probe("a", dict.fromkeys(range(16), 0))
    store.close()
    assert [s for s, reply in enumerate(replies) if not isinstance(reply, Reply)] == [5]
    assert isinstance(replies[5], StoreError)
    generations = {s: probe.counter.generation for s, probe in probes.items() if isinstance(probe, Probe)}
    assert generations == {s: s + 1 for s in range(16) if s != 5}


# Sessions of other nodes


def test_a_registration_adopts_the_same_session(a: Hand, b: Hand, server: Server) -> None:
    a.apply(login("u", "s1", age_s=60))
    before = record(server.client, "u")["sessions"][""]
    b.apply(register("u", "s1"))
    after = record(server.client, "u")["sessions"][""]
    assert after == {**before, "node": "b", "generation": 1}
    assert (owned(server.client, "a"), owned(server.client, "b")) == (set(), {("u", "", "s1")})
    assert probed(a.store, "a").inbox == ()


@pytest.mark.parametrize(
    ("kind", "device", "allowed"),
    [(NodeNoticeKind.DISPLACED, "phone", True), (NodeNoticeKind.LIMITED, "desk", False)],
)
def test_the_node_is_notified_by_message_and_inbox(
    server: Server, kind: NodeNoticeKind, device: str, *, allowed: bool
) -> None:
    store = RedisStore(server.url, Shape(Keys(), 1000, 10**13, 1, "oldest"))
    a, b = Hand(store, "a"), Hand(store, "b")
    a.open()
    b.open()
    listener = listen(server.client, KEYS.control_channel("a"))
    a.apply(login("u", "sa", "phone", age_s=2))
    b.apply(login("u", "sb", device))
    ((_, message),) = received(listener, 1)
    inbox = probed(store, "a").inbox
    store.close()
    assert inbox == (NodeNotice(kind, "u", "phone", "sa", "b", return_allowed=allowed),)
    fields = {"type": kind.value, "n": 1, "uid": "u", "device": "phone", "session": "sa", "by": "b"}
    assert message == {**fields, "return_allowed": allowed}
    stays = {("u", "phone", "sa")} if kind is NodeNoticeKind.LIMITED else set()
    assert online_sessions(server.client) == {("u", device, "sb"), *stays}, "until the node ends it"


def test_a_new_session_beyond_the_limit_may_return_later(server: Server) -> None:
    store = RedisStore(server.url, Shape(Keys(), 1000, 10**13, 1, "newest"))
    a, b = Hand(store, "a"), Hand(store, "b")
    a.open()
    b.open()
    a.apply(login("u", "sa", "phone", age_s=2))
    b.apply(login("u", "sb", "desk"))
    inbox = probed(store, "b").inbox
    store.close()
    assert inbox == (NodeNotice(NodeNoticeKind.LIMITED, "u", "desk", "sb", "b", return_allowed=True),)


def test_the_inbox_returns_the_unread_of_its_newest_fifty(a: Hand, b: Hand) -> None:
    a.apply(*(login(f"u{i}", f"a{i}") for i in range(60)))
    b.apply(*(login(f"u{i}", f"b{i}") for i in range(60)))
    probe = probed(a.store, "a")
    assert [d.uid for d in probe.inbox] == [f"u{i}" for i in range(10, 60)]
    assert probe.inbox_n == 60
    read = [len(probed(a.store, "a", n).inbox) for n in (59, 60, 300)]
    assert read == [1, 0, 50], "an inbox that was reset is read completely"


def test_retire_leaves_a_session_that_moved_to_another_node(a: Hand, b: Hand, server: Server) -> None:
    a.apply(login("u", "s1"))
    b.apply(register("u", "s1"))
    server.client.hset(KEYS.sessions(0, "a"), "u ", "1 s1")  # an inconsistent hash
    a.open(2)
    a.retire()
    assert online_sessions(server.client) == {("u", "", "s1")}
    assert owned(server.client, "a") == set()


def test_a_pending_login_is_removed_by_the_login(a: Hand, server: Server) -> None:
    a.apply(hold("u", "s1"), hold("v", "s2"), hold("u", "s3", "tv"))
    assert server.client.hlen(KEYS.pending_logins(0, "a")) == 2
    assert server.client.smembers(KEYS.pending_nodes(0)) == {b"a"}
    a.apply(login("u", "s1"), login("u", "s3", "tv"))
    a.apply(register("v", "s2"))
    assert not server.client.exists(KEYS.pending_logins(0, "a"), KEYS.pending_nodes(0))


@pytest.mark.parametrize("by", ["retirement", "sweep"])
def test_pending_logins_restored_with_lost_writes_are_removed(
    a: Hand, b: Hand, server: Server, by: str
) -> None:
    a.apply(hold("u", "s1"))
    if by == "retirement":
        a.open(2)
        a.retire()
    else:
        b.fence("a")
        assert b.sweep("a").done
    assert not server.client.exists(KEYS.pending_logins(0, "a"), KEYS.pending_nodes(0))


def longest_meta(number: int) -> str:
    """Return a text of `META_TEXT_MAX_BYTES` that grows most when it becomes part of another JSON text."""
    head = f'{{"m":"{number:06}'
    return head + '\\"' * ((META_TEXT_MAX_BYTES - len(head) - 2) // 2) + '"}'


def with_devices(server: Server, metas: list[str]) -> Event:
    """Log in devices with these texts, the last in the order of bytes first; return the last entry."""
    with closing(
        RedisStore(server.url, Shape(KEYS, 1000, 10**13, max_sessions=64, device_events=True))
    ) as store:
        node = Hand(store, "node")
        node.open()
        for number, meta in reversed([*enumerate(metas)]):
            node.apply(login("u", f"s{number}", f"d{number:02}", profile=Profile(meta=meta)))
    return events(server.client)[-1]


def test_an_entry_has_its_devices_in_the_order_of_their_bytes(server: Server) -> None:
    devices = json.loads(with_devices(server, ["", '{"a":1}', ""])["devices"])
    assert [(each["device"], each.get("meta")) for each in devices] == [
        ("d00", None),
        ("d01", '{"a":1}'),
        ("d02", None),
    ]


@pytest.mark.parametrize("excess", [0, 1])
def test_devices_with_much_meta_are_shown_without_it_in_entries_and_answers(
    server: Server, excess: int
) -> None:
    metas = [longest_meta(number) for number in range(DEVICES_META_MAX_BYTES // META_TEXT_MAX_BYTES)]
    metas += ['{"é":1}'[: 7 * excess]]
    entry = with_devices(server, metas)
    said = [each.get("meta", "") for each in json.loads(entry["devices"])]
    assert said == ([""] * len(metas) if excess else metas)
    found = read_snapshot(server.client, KEYS, 0, ["u"], detail=True).states["u"]
    shown = read_entry(entry["id"], entry)
    assert shown is not None
    assert found.devices == shown.state.devices, "a query and a watch show the same"


def test_devices_that_change_and_go_within_a_call_are_shown_as_they_are(server: Server) -> None:
    with closing(RedisStore(server.url, Shape(KEYS, 1000, 10**13, device_events=True))) as store:
        node = Hand(store, "node")
        node.open()
        node.apply(
            login("u", "s1", "b"),
            login("u", "s2", "a", profile=Profile(meta='{"n":1}')),
            update("u", "s2", "a", profile=Profile("busy", meta='{"n":2}')),
            end("u", "s1", "b"),
            login("u", "s3", "c"),
        )
    shown = [
        [(each["device"], each["status"], each.get("meta")) for each in json.loads(event["devices"])]
        for event in events(server.client)[-3:]
    ]
    changed = ("a", "busy", '{"n":2}')
    assert shown == [[changed, ("b", "online", None)], [changed], [changed, ("c", "online", None)]]
