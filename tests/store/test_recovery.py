"""Lost answers, lost data, full outboxes: one node against a real server and a naive model."""

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.driving import check_alternation, events, online_sessions, owned, story, written
from tests.store.nodes import Loss, ManualNode
from tests.store.servers import Server

UIDS = ["u1", "u2", "u3"]
DEVICES = ["", "phone"]


MakeNode = Callable[..., ManualNode]


@pytest.fixture
def make_node(server: Server) -> Iterator[MakeNode]:
    """Makes nodes on the test's server, with `ManualNode`'s arguments."""
    with contextlib.ExitStack() as stack:

        def make(*names: str, **settings: Any) -> ManualNode:
            node = ManualNode(server.url, *names, **settings)
            stack.callback(node.store.close)
            return node

        yield make


@pytest.fixture
def node(make_node: MakeNode) -> ManualNode:
    return make_node()


def assert_converged(node: ManualNode, server: Server) -> None:
    """Redis equals the live sessions, its stream alternates, and nothing waits."""
    shards = range(node.keys.shards)
    assert node.outbox.held == 0
    assert set().union(*(online_sessions(server.client, s) for s in shards)) == node.sessions
    assert set().union(*(owned(server.client, node.node, s) for s in shards)) == node.sessions
    for shard in shards:
        online = check_alternation(events(server.client, shard))
        assert online == {uid for uid, _, _ in node.sessions if node.keys.shard(uid) == shard}


def told(node: ManualNode, server: Server) -> dict[str, list[str]]:
    """Per user, the types of the events in the stream."""
    result: dict[str, list[str]] = {}
    for shard in range(node.keys.shards):
        for event in events(server.client, shard):
            if event["type"] != "gap":
                result.setdefault(event["uid"], []).append(event["type"])
    return result


def truth(node: ManualNode) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for kind, uid in node.truth:
        result.setdefault(uid, []).append(kind)
    return result


@pytest.mark.parametrize("shards", [1, 16])
def test_lost_answers_double_nothing(make_node: MakeNode, server: Server, shards: int) -> None:
    rng = random.Random(20)
    node = make_node(shards=shards)
    uids = [f"user{i}" for i in range(60)]
    for _ in range(5000):
        act = node.login if rng.random() < 0.5 else node.end
        act(rng.choice(uids), rng.choice(DEVICES))
        if rng.random() < 0.3:
            node.round(rng.choice(list(Loss)))
        if rng.random() < 0.01:
            server.change_history()  # with an unacknowledged batch under way, as often as not
    node.settle()
    assert_converged(node, server)
    assert told(node, server) == truth(node)
    stream = [event for shard in range(shards) for event in events(server.client, shard)]
    assert node.transitions.report() == written(stream)
    assert min(node.lost[Loss.REPLY], node.lost[Loss.REQUEST]) > 300
    assert sum(w.resyncs for w in node.writers) > 10
    print(f"5,000 operations, {node.lost[Loss.REPLY]} answers lost, {len(node.truth)} events, duplicates 0")


def test_without_frozen_batches_lost_answers_would_double(node: ManualNode, server: Server) -> None:
    """The negative control: the same items under a new number are applied twice."""
    node.login("u")
    node.settle()
    node.end("u")
    node.login("u")
    node.end("u")
    node.round(Loss.REPLY)
    frozen = node.writers[0].next(node.now)
    assert frozen is not None
    node.settle()
    assert story(server.client).count(("offline", "u", "idle_timeout")) == 2
    node.login("u")  # applied once more: login of an ended session, then its end
    again = node.writers[0].next(node.now)
    assert again is not None
    node.store.apply([replace(frozen, counter=again.counter)])
    assert story(server.client).count(("offline", "u", "idle_timeout")) == 3


COMMANDS = st.one_of(
    st.tuples(st.just("login"), st.sampled_from(UIDS), st.sampled_from(DEVICES)),
    st.tuples(st.just("end"), st.sampled_from(UIDS), st.sampled_from(DEVICES)),
    st.tuples(st.just("round"), st.sampled_from(list(Loss))),
    st.tuples(st.just("round"), st.just(Loss.NONE)),
    st.tuples(st.sampled_from(["flush", "save", "rollback", "history", "probe"])),
)


class Faults:
    """Plays commands of Hypothesis on a node and its server."""

    def __init__(self, node: ManualNode, server: Server) -> None:
        self.node, self.server = node, server
        self.saved: dict[bytes, bytes] = {}

    def play(self, command: tuple[object, ...]) -> None:
        name, *arguments = command
        if name in {"login", "end", "round"}:
            getattr(self.node, str(name))(*arguments)
        elif name == "probe":
            self.node.probe()
        elif name == "history":
            self.server.change_history()
        elif name == "flush":
            self.server.client.flushall()
        elif name == "save":
            keys: Any = self.server.client.keys("*")
            self.saved = {key: self.server.client.dump(key) for key in keys}  # type: ignore[misc]  # as above
        elif name == "rollback":
            self.server.client.flushall()
            for key, value in self.saved.items():
                self.server.client.restore(key, 0, value)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(COMMANDS, max_size=40), st.sampled_from([4, 1000]))
def test_every_fault_ends_in_convergence_and_alternation(
    server: Server, commands: list[tuple[object, ...]], max_items: int
) -> None:
    server.client.flushall()
    node = ManualNode(server.url, max_items=max_items)
    faults = Faults(node, server)
    for command in commands:
        faults.play(command)
    node.settle()
    assert_converged(node, server)
    intact = not {"flush", "rollback"} & {command[0] for command in commands}
    if intact and node.outbox.statistics().dropped_total == 0:
        assert told(node, server) == truth(node)
    node.store.close()


def play_outage(node: ManualNode) -> None:
    """While Redis is away one stays, one ends, one returns, one comes and goes, one comes."""
    node.end("gone")
    node.end("back")
    node.login("back")
    node.login("brief")
    node.end("brief")
    node.login("new")


AFTER_OUTAGE = {"stays": ["online"], "gone": ["online", "offline"], "new": ["online"]} | {
    "back": ["online", "offline", "online"],
    "brief": ["online", "offline"],
}


@pytest.fixture
def busy(node: ManualNode) -> ManualNode:
    for uid in ("stays", "gone", "back"):
        node.login(uid)
    node.settle()
    return node


def test_flushall_is_rebuilt_from_live_sessions(busy: ManualNode, server: Server) -> None:
    server.client.flushall()
    play_outage(busy)
    busy.settle()
    assert_converged(busy, server)
    assert told(busy, server) == AFTER_OUTAGE


def test_an_idle_node_learns_of_lost_data_by_its_probe(busy: ManualNode, server: Server) -> None:
    server.client.flushall()
    busy.probe()
    while busy.round():
        pass
    assert_converged(busy, server)
    assert {s[2] for s in story(server.client)} == {"returned"}


@pytest.mark.parametrize("opening", [Loss.NONE, Loss.REPLY])
def test_what_redis_lost_is_not_forgotten_by_a_resync_that_another_one_cuts_short(
    node: ManualNode, server: Server, opening: Loss
) -> None:
    node.login("ann")
    node.settle()
    server.client.flushall()
    node.probe()
    node.round(opening)  # and nobody is registered yet
    node.end("ann", code=100)
    for writer in node.writers:
        writer.rename("a-again")
    node.node = "a-again"
    node.settle()
    assert told(node, server) == {"ann": ["online", "offline"]}


def test_restarted_empty_is_rebuilt(busy: ManualNode, server: Server) -> None:
    server.kill()
    play_outage(busy)
    server.start()
    began = time.perf_counter()
    busy.store.close()
    busy.settle()
    print(f"restarted empty: difference 0 after {time.perf_counter() - began:.3f} s")
    assert_converged(busy, server)
    assert told(busy, server) == AFTER_OUTAGE


def test_restarted_with_its_file_goes_on_where_it_was(durable_server: Server) -> None:
    node = ManualNode(durable_server.url)
    for uid in ("stays", "gone", "back"):
        node.login(uid)
    node.settle()
    node.end("gone")
    node.round(Loss.REPLY)  # applied just before the crash, and nobody knows
    durable_server.kill()
    play_outage(node)
    durable_server.start()
    node.store.close()
    node.settle()
    assert_converged(node, durable_server)
    assert told(node, durable_server) == truth(node) == AFTER_OUTAGE
    node.store.close()


def test_a_return_during_an_outage_is_told_in_order_on_an_empty_redis(
    node: ManualNode, server: Server
) -> None:
    a1 = node.login("u")
    node.settle()
    server.client.flushall()
    node.end("u")
    a2 = node.login("u")
    node.end("u")
    node.settle()
    assert [(e["type"], e["session"], e["code"]) for e in events(server.client)] == [
        *(("online", a1, "2"), ("offline", a1, "201")),
        *(("online", a2, "1"), ("offline", a2, "201")),
    ]


def test_two_devices_that_ended_in_the_outage_are_one_period(node: ManualNode, server: Server) -> None:
    node.login("u", "phone")
    node.login("u", "desk")
    node.settle()
    server.client.flushall()
    node.end("u", "phone")
    node.end("u", "desk")
    node.settle()
    assert [e["type"] for e in events(server.client)] == ["online", "offline"]


def test_script_flush_is_cured_unnoticed(busy: ManualNode, server: Server) -> None:
    server.client.script_flush()
    play_outage(busy)
    busy.settle()
    assert told(busy, server) == AFTER_OUTAGE
    assert busy.writers[0].resyncs == 0


@pytest.mark.parametrize("shards", [1, 16])
def test_a_full_outbox_is_one_gap_and_then_who_lives(
    make_node: MakeNode, server: Server, shards: int
) -> None:
    node = make_node(shards=shards, max_items=100)
    for i in range(50):
        node.login(f"user{i}")
    node.settle()
    for i in range(50):  # Redis is away: 100 changes fit, 150 do not
        node.end(f"user{i}")
        node.login(f"user{i + 25}", "phone")
        node.login(f"user{i + 50}")
        node.end(f"user{i + 50}")
        node.login(f"late{i}")
    assert node.outbox.statistics().dropped_total == 150
    node.settle()
    assert_converged(node, server)
    gaps = [e for s in range(shards) for e in events(server.client, s) if e["type"] == "gap"]
    assert sum(int(gap["dropped"]) for gap in gaps) == 150
    assert len(gaps) <= shards
    node.store.close()


def test_a_skipped_end_is_retired_as_node_down(make_node: MakeNode, server: Server) -> None:
    node = make_node(max_items=1)
    node.login("ghost")
    node.settle()
    node.login("other")  # fills the outbox
    node.end("ghost")
    node.settle()
    kinds = [(e["type"], e.get("uid"), e.get("reason")) for e in events(server.client)]
    assert kinds == [
        ("online", "ghost", "login"),
        ("online", "other", "login"),
        ("gap", None, None),
        ("offline", "ghost", "node_down"),
    ]


def test_a_skipped_end_of_a_login_that_waited_is_retired(make_node: MakeNode, server: Server) -> None:
    node = make_node(max_items=1)
    node.login("u")  # Redis was never reached so far
    node.end("u")  # skipped
    node.settle()
    assert [(e["type"], e.get("reason")) for e in events(server.client)] == [
        ("online", "login"),
        ("gap", None),
        ("offline", "node_down"),
    ]


def test_a_skipped_login_is_not_registered_before_the_end_that_waits(
    make_node: MakeNode, server: Server
) -> None:
    node = make_node(max_items=1)
    node.login("u")
    node.settle()
    node.end("u")
    node.login("u")  # skipped
    server.change_history()
    node.settle()
    assert_converged(node, server)
    assert told(node, server) == {"u": ["online", "offline", "online"]}


def test_a_skipped_takeover_is_no_event(make_node: MakeNode, server: Server) -> None:
    node = make_node(max_items=1)
    node.login("u")
    node.settle()
    node.login("other")
    node.login("u")  # skipped: Redis still has the session before it, which no longer lives
    server.change_history()
    node.settle()
    assert_converged(node, server)
    assert told(node, server) == {"u": ["online"], "other": ["online"]}


def test_steady_traffic_does_not_keep_the_retirement_waiting(make_node: MakeNode, server: Server) -> None:
    node = make_node(max_items=5)
    node.login("ghost")
    node.settle()
    for i in range(5):
        node.login(f"other{i}")
    node.end("ghost")
    for i in range(20):
        node.round()
        node.now += 1
        node.login(f"user{i}")
    assert ("ghost", "node_down") in [(e.get("uid"), e.get("reason")) for e in events(server.client)]


def test_an_intact_redis_is_told_no_period_again(make_node: MakeNode, server: Server) -> None:
    a, b = make_node("a"), make_node("b")
    a.login("u")
    a.settle()
    b.login("u")
    b.settle()
    assert online_sessions(server.client) == b.sessions  # it took the place of a's
    b.end("u")
    b.settle()
    a.end("u", code=200)  # a had not heard of it yet
    server.change_history()
    a.settle()
    assert [e["type"] for e in events(server.client)] == ["online", "offline"]


def test_a_login_before_the_first_opening_takes_over(make_node: MakeNode, server: Server) -> None:
    """Its predecessor died with the user's session on record, and nobody has swept it yet."""
    predecessor, node = make_node("a"), make_node("b")
    predecessor.login("u")
    predecessor.settle()
    node.login("u")
    node.settle()
    assert node.superseded == []
    assert online_sessions(server.client) == node.sessions


@pytest.mark.parametrize("waited_s", [0.0, 60.0])
def test_a_waiting_login_goes_by_its_age_where_records_were_lost(
    make_node: MakeNode, server: Server, waited_s: float
) -> None:
    a, b = make_node("a"), make_node("b")
    a.settle()
    b.settle()
    server.client.flushall()
    b.login("u")
    b.settle()
    a.login("u")
    a.now += waited_s
    a.settle()
    assert bool(a.superseded) is bool(waited_s)
    assert online_sessions(server.client) == (b if waited_s else a).sessions


def test_ends_wait_for_other_nodes_to_register_first(make_node: MakeNode, server: Server) -> None:
    a, b = make_node("a"), make_node("b")
    a.login("u", "phone")
    b.login("u", "desk")
    a.settle()
    b.settle()
    server.change_history()  # what Redis has next is not what they had
    server.client.flushall()
    a.end("u", "phone")
    b.probe()
    b.round()  # b has opened, so a sees it
    a.probe()
    while a.round():
        pass
    assert story(server.client) == []  # a's end waits
    while b.round():
        pass
    a.now += 10.0
    while a.round():
        pass
    assert story(server.client) == [("online", "u", "returned")]  # never offline: the desk is there


def test_logins_and_registrations_do_not_wait(make_node: MakeNode, server: Server) -> None:
    a, b = make_node("a"), make_node("b")
    a.login("stays")
    a.settle()
    b.settle()
    server.client.flushall()
    b.settle()
    a.end("stays")
    a.login("stays")  # waits behind the end of the same user
    a.login("new")
    while a.round():
        pass
    assert story(server.client) == [("online", "new", "login")]
    a.settle()
    assert [u for _, u, _ in story(server.client)] == ["new", "stays", "stays", "stays"]


def test_nobody_waits_for_a_node_that_is_not_alive(make_node: MakeNode, server: Server) -> None:
    a, b = make_node("a", alive=lambda _: False), make_node("b")
    a.login("u")
    a.settle()
    b.settle()
    server.change_history()
    a.end("u")
    while a.round():
        pass
    assert [t for t, _, _ in story(server.client)] == ["online", "offline"]


def test_a_renamed_node_takes_its_sessions_along(busy: ManualNode, server: Server) -> None:
    busy.end("gone")
    busy.round(Loss.REPLY)
    server.client.hset(busy.keys.node(0, "a"), "fence", "1")
    busy.login("new")
    busy.probe()
    assert busy.writers[0].fenced
    assert not busy.round()
    busy.writers[0].rename("a2")
    busy.node = "a2"
    busy.settle()
    assert_converged(busy, server)
    assert told(busy, server) == truth(busy)


def test_entry_ids_never_fall_behind_what_the_node_saw(busy: ManualNode, server: Server) -> None:
    """Redis wrote with its clock ahead, lost its data, and its clock is right again."""
    ahead_ms = int(time.time() * 1000) + 10_000_000
    server.client.xadd(busy.keys.events(0), {"type": "gap"}, id=f"{ahead_ms}-0")
    busy.probe()
    server.client.flushall()
    busy.settle()
    ids = [event["id"] for event in events(server.client)]
    assert len(ids) == len(busy.sessions)
    assert all(int(entry_id.split("-")[0]) >= ahead_ms for entry_id in ids)


@pytest.mark.parametrize("devices", [[""], ["", "phone"]])
def test_the_end_of_a_session_nobody_vouched_for_tells_what_redis_lost(
    node: ManualNode, server: Server, devices: list[str]
) -> None:
    for device in devices:
        node.login("u1", device)
    node.settle()
    server.client.flushall()
    node.unheard.add("u1")
    node.settle()
    assert online_sessions(server.client) == set(), "too silent to be registered"
    for device in devices:
        node.end("u1", device)
    node.settle()
    assert story(server.client) == [("online", "u1", "returned"), ("offline", "u1", "idle_timeout")]


def test_where_redis_lost_nothing_it_tells_nothing_more(node: ManualNode, server: Server) -> None:
    node.login("u1")
    node.settle()
    node.unheard.add("u1")
    server.change_history()
    node.settle()
    assert [kind for kind, *_ in story(server.client)] == ["online", "offline"], "retired"
    node.end("u1")
    node.settle()
    assert [kind for kind, *_ in story(server.client)] == ["online", "offline"]


def test_one_that_is_heard_again_registers_and_ends_as_usual(node: ManualNode, server: Server) -> None:
    node.login("u1")
    node.settle()
    server.client.flushall()
    node.unheard.add("u1")
    node.settle()
    node.outbox.append(node.live["u1", ""])
    node.end("u1")
    node.settle()
    assert story(server.client) == [("online", "u1", "returned"), ("offline", "u1", "idle_timeout")]


def test_a_login_behind_an_end_that_waits_is_marked_and_told_after_it(
    make_node: MakeNode, server: Server
) -> None:
    node, other = make_node("a"), make_node("b")
    node.login("u1", "phone")
    node.settle()
    other.login("u1", "desk")
    other.settle()
    node.probe()
    server.client.flushall()
    node.end("u1", "phone")
    node.login("u1", "phone")
    node.probe()
    while node.round():
        node.now += 0.001
    assert {kind for kind, *_ in story(server.client)} == set(), "the end waits, and the login behind it"
    other.settle()
    node.now = other.now  # the end is the later one
    other.end("u1", "desk")
    while other.round():
        other.now += 0.001
    assert online_sessions(server.client) == {("u1", "phone", node.live["u1", "phone"].session)}
    node.settle()
    assert check_alternation(events(server.client)) == {"u1"}
    assert [kind for kind, *_ in story(server.client)] == ["online"]


def test_an_end_that_was_under_way_when_redis_went_away_waits_for_others_too(
    make_node: MakeNode, server: Server
) -> None:
    node, other = make_node("a"), make_node("b")
    node.login("u1", "phone")
    for each in (node, other):
        each.settle()
    node.probe()
    node.end("u1", "phone")
    node.round(Loss.REQUEST)
    other.login("u1", "desk")
    node.probe()
    for writer in node.writers:
        writer.returned(node.now)
    while node.round():
        node.now += 0.001
    assert [kind for kind, *_ in story(server.client)] == ["online"]
    other.settle()
    node.settle()
    assert [kind for kind, *_ in story(server.client)] == ["online"]
    assert online_sessions(server.client) == {("u1", "desk", other.live["u1", "desk"].session)}


# What Redis has written is counted once, whatever became of the answers


def test_a_node_that_got_another_id_counts_what_it_wrote_under_the_old_one(
    node: ManualNode, server: Server
) -> None:
    node.login("u")
    node.round(Loss.REPLY)
    for writer in node.writers:
        writer.rename("b")
    node.node = "b"
    node.settle()
    assert node.transitions.report()["online"] == {"login": 1}
    assert node.transitions.report() == written(events(server.client))


def test_a_gap_is_counted_also_where_the_openings_answer_got_lost(
    make_node: MakeNode, server: Server
) -> None:
    node = make_node(max_items=10)
    node.settle()
    for n in range(12):
        node.login(f"u{n}")
    while not any(event["type"] == "gap" for event in events(server.client)):
        taken = node.writers[0].next(node.now)
        node.round(Loss.REPLY if taken is not None and getattr(taken, "opening", None) else Loss.NONE)
        node.now += 0.5
    node.writers[0].resync()
    node.settle()
    assert node.transitions.report() == written(events(server.client))
    assert node.transitions.report()["gap"]["gap"] == 2, "the second opening cannot know of the first one's"
