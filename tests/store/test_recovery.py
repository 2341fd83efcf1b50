"""Lost answers, lost data, full outboxes: nodes against a real server and a naive model."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from presence.outbox.end_gate import MIN_OUTAGE_S
from presence.outbox.replies import Reply, ReplyStatus
from tests.store.driving import brief_events, check_alternation, events, online_sessions, owned, rows, written
from tests.store.nodes import Loss, ManualNode
from tests.store.servers import Server
from tests.support.script_texts import changed, little_room

UIDS = ["u1", "u2", "u3"]
DEVICES = ["", "phone"]


def assert_converged(node: ManualNode, server: Server) -> None:
    """Assert that Redis equals the live sessions, its stream alternates, and nothing is pending."""
    shards = range(node.keys.shards)
    assert node.outbox.pending == 0
    assert set().union(*(online_sessions(server.client, s) for s in shards)) == node.sessions
    assert set().union(*(owned(server.client, node.node, s) for s in shards)) == node.sessions
    for shard in shards:
        online = check_alternation(events(server.client, shard))
        assert online == {uid for uid, _, _ in node.sessions if node.keys.shard(uid) == shard}


def event_types(node: ManualNode, server: Server) -> dict[str, list[str]]:
    """Return the types of each user's events in the stream."""
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


@pytest.fixture(params=["room", "little room"])
def room(request: pytest.FixtureRequest) -> Iterator[None]:
    """With little room batches are cut into pieces."""
    with changed(*([little_room()] if request.param == "little room" else [])):
        yield


@pytest.mark.parametrize("shards", [1, 16])
def test_lost_answers_duplicate_nothing(server: Server, shards: int, room: None) -> None:
    rng = random.Random(20)
    node = ManualNode(server.url, shards=shards)
    uids = [f"user{i}" for i in range(60)]
    for _ in range(1500):
        act = node.login if rng.random() < 0.5 else node.end
        act(rng.choice(uids), rng.choice(DEVICES))
        if rng.random() < 0.3:
            node.round(rng.choice(list(Loss)))
        if rng.random() < 0.01:
            server.change_history()  # often with an unacknowledged batch in flight
    node.settle()
    node.store.close()
    assert_converged(node, server)
    assert event_types(node, server) == truth(node)
    stream = [event for shard in range(shards) for event in events(server.client, shard)]
    assert node.transitions.report() == written(stream)
    assert min(node.lost[Loss.REPLY], node.lost[Loss.REQUEST]) > 80
    assert sum(w.resyncs for w in node.writers) > 5


def test_without_frozen_batches_lost_answers_would_duplicate(server: Server) -> None:
    """The negative control: the same items under a new number are applied twice."""
    node = ManualNode(server.url)
    node.login("u")
    node.settle()
    node.end("u")
    node.login("u")
    node.end("u")
    node.round(Loss.REPLY)
    frozen = node.next_step(node.writers[0])
    assert frozen is not None
    node.settle()
    assert brief_events(server.client).count(("offline", "u", "idle_timeout")) == 2
    node.login("u")  # applied again: login of an ended session, then its end
    again = node.next_step(node.writers[0])
    assert again is not None
    node.store.apply([replace(frozen, counter=again.counter)])
    node.store.close()
    assert brief_events(server.client).count(("offline", "u", "idle_timeout")) == 3


def test_a_late_copy_of_a_batch_that_had_too_many_items_is_refused(server: Server) -> None:
    node = ManualNode(server.url)
    for number in range(6):
        node.login(f"u{number}")
        node.login(f"u{number}", "phone")
    node.settle()
    for number in range(6):
        node.end(f"u{number}")
        node.login(f"u{number}")
    node.round(Loss.REQUEST)
    late = node.next_step(node.writers[0])
    assert late is not None
    with changed(little_room()):
        node.settle()
    (answer,) = node.store.apply([late])
    node.store.close()
    assert isinstance(answer, Reply)
    assert answer.status is ReplyStatus.UNKNOWN
    assert_converged(node, server)


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
        if name in {"login", "end", "round", "probe"}:
            getattr(self.node, str(name))(*arguments)
        elif name == "history":
            self.server.change_history()
        elif name == "save":
            keys: Any = self.server.client.keys("*")
            self.saved = {key: self.server.client.dump(key) for key in keys}  # type: ignore[misc]  # as above
        else:
            self.server.client.flushall()
            for key, value in self.saved.items() if name == "rollback" else ():
                self.server.client.restore(key, 0, value)


@settings(
    max_examples=2 * settings().max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(COMMANDS, max_size=40), st.sampled_from([4, 1000]))
def test_every_sequence_of_faults_ends_in_convergence_and_alternation(
    server: Server, room: None, commands: list[tuple[object, ...]], max_items: int
) -> None:
    server.client.flushall()
    node = ManualNode(server.url, max_items=max_items)
    faults = Faults(node, server)
    for command in commands:
        faults.play(command)
    node.settle()
    assert_converged(node, server)
    intact = not {"flush", "rollback"} & {command[0] for command in commands}
    if intact and node.outbox.statistics().skipped_total == 0:
        assert event_types(node, server) == truth(node)
    node.store.close()


class Play:
    """Plays a row: steps, each ``NODE VERB WORD…`` or a fault of the server; nodes start when first named."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.nodes: dict[str, ManualNode] = {}

    def run(self, steps: str) -> None:
        for step in steps.split("; "):
            name, *words = step.split()
            if hasattr(self, name):
                getattr(self, name)(*words)
            else:
                self.of_node(name, *words)

    def of_node(self, name: str, verb: str, *words: str) -> None:
        if name not in self.nodes:
            options: dict[str, Any] = {"alive": lambda _: False} if "alone" in (verb, *words) else {}
            if verb == "holds":
                options["max_items"] = int(words[0])
            self.nodes[name] = ManualNode(self.server.url, name, **options)
        node = self.nodes[name]
        writer = node.writers[0]
        verbs: dict[str, Callable[..., object]] = {
            **{each: getattr(node, each) for each in ("login", "end", "probe", "settle")},
            "holds": lambda *_: None,
            "alone": lambda: None,
            "drain": lambda: drain(node),
            "round": lambda loss="none": node.round(Loss(loss)),
            "wait": lambda seconds: setattr(node, "now", node.now + float(seconds)),
            "at": lambda other: setattr(node, "now", self.nodes[other].now),
            "unheard": node.unheard.add,
            "registers": lambda uid: node.outbox.append(node.live[uid, ""]),
            "returned": lambda: writer.answered(node.now, node.now, node.now - MIN_OUTAGE_S),
            "rename": lambda to: rename(node, to),
        }
        if verb in verbs:
            verbs[verb](*words)
        elif verb == "fenced":
            assert writer.is_fenced
            assert not node.round()
        elif verb == "has":
            (session,) = online_sessions(self.server.client)
            assert session in node.sessions
        else:
            assert verb == "yields"
            assert [each.uid for each in node.superseded] == [*words]

    def event_count(self, count: str) -> None:
        assert len(events(self.server.client)) == int(count)

    def counted(self) -> None:
        (node,) = self.nodes.values()
        assert node.transitions.report() == written(events(self.server.client))

    def untouched(self) -> None:
        """Assert that no node has resynced so far."""
        assert not any(node.writers[0].resyncs for node in self.nodes.values())

    def flush(self) -> None:
        self.server.client.flushall()

    def forget_scripts(self) -> None:
        self.server.client.script_flush()

    def history(self) -> None:
        self.server.change_history()

    def fence(self, name: str) -> None:
        self.server.client.hset(self.nodes[name].keys.node(0, name), "fence", "1")

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()
        for node in self.nodes.values():
            node.store.close()


def drain(node: ManualNode) -> None:
    while node.round():
        node.now += 0.001


def rename(node: ManualNode, to: str) -> None:
    node.writers[0].rename(to)
    node.node = to


BUSY = "a login stays; a login gone; a login back; a settle"
OUTAGE = "a end gone; a end back; a login back; a login brief; a end brief; a login new"
"""While Redis is away one user stays, one ends, one returns, one logs in and ends, one logs in."""
MEANWHILE = "brief: login idle_timeout; new: login"
KEPT = f"stays: login; gone: login idle_timeout; back: login idle_timeout login; {MEANWHILE}"
LOST = f"stays: returned; gone: returned idle_timeout; back: returned idle_timeout login; {MEANWHILE}"
PREDECESSOR = "old login u1; old settle; new holds 2 alone; new settle"
THIRD_FINDS_IT_FULL = "new login u2; new login u3; new login u1"
STEADY = "; ".join(
    [
        "a holds 5; a login ghost; a settle",
        *(f"a login other{i}" for i in range(5)),
        "a end ghost",
        *(f"a round; a wait 1; a login user{i}" for i in range(20)),
    ]
)
PARTS = {name: value for name, value in [*globals().items()] if name.isupper() and isinstance(value, str)}

# What is played; and by user the reasons of all events, or how many changes a gap counts as missing.
ROWS = """
# Redis lost all or nothing
all data are lost
    BUSY; flush; OUTAGE; a settle
    -> LOST
a restart without a file
    BUSY; kill; OUTAGE; start; a settle
    -> LOST
a restart with its file continues where it was, and the last applied batch is unknown
    BUSY; a end gone; a round reply; kill; OUTAGE; start; a settle
    -> KEPT
lost scripts are loaded again
    BUSY; forget_scripts; OUTAGE; a settle; untouched
    -> KEPT
an idle node detects lost data by its probe
    BUSY; flush; a probe; a drain
    -> stays: returned; gone: returned; back: returned
lost periods are kept by an interrupted resync, no call lost
    a login ann; a settle; flush; a probe; a round; a end ann; a rename a2; a settle
    -> ann: returned idle_timeout
lost periods are kept by an interrupted resync, reply lost
    a login ann; a settle; flush; a probe; a round reply; a end ann; a rename a2; a settle
    -> ann: returned idle_timeout
a return during an outage is written in order to an empty Redis
    a login u; a settle; flush; a end u; a login u; a end u; a settle
    -> u: returned idle_timeout login idle_timeout
two devices that ended in the outage are one period
    a login u phone; a login u desk; a settle; flush; a end u phone; a end u desk; a settle
    -> u: returned idle_timeout
no period is repeated on an intact Redis
    a login u; a settle; b login u; b settle; b has u; b end u; b settle; a end u; history; a settle
    -> u: login idle_timeout
# Full outboxes
a skipped end is retired
    a holds 1; a login ghost; a settle; a login other; a end ghost; a settle
    -> ghost: login node_down; other: login; gap: 1
a skipped end of a queued login is retired
    a holds 1; a login u; a end u; a settle
    -> u: login node_down; gap: 1
a skipped login is not registered before the queued end
    a holds 1; a login u; a settle; a end u; a login u; history; a settle; a has u
    -> u: login idle_timeout returned; gap: 1
a skipped take-over is no event
    a holds 1; a login u; a settle; a login other; a login u; history; a settle
    -> u: login; other: login; gap: 1
steady traffic does not delay the retirement
    STEADY
    -> ghost: login node_down
# Other nodes
a login before the first opening takes over
    a login u; a settle; b login u; b settle; b yields; b has u
    -> u: login
a queued login that is not older stays after records were lost
    a settle; b settle; flush; b login u; b settle; a login u; a settle; a yields; a has u
    -> u: login
a queued login that is older yields
    a settle; b settle; flush; b login u; b settle; a login u; a wait 60; a settle; a yields u; b has u
    -> u: login
ends wait for other nodes to register first
    a login u phone; b login u desk; a settle; b settle; history; flush; a end u phone; b probe; b round;
    a probe; a drain; event_count 0; b drain; a wait 10; a drain; b has u
    -> u: returned
logins and registrations do not wait
    a login stays; a settle; b settle; flush; b settle; a end stays; a login stays; a login new; a drain;
    event_count 1; a settle
    -> new: login; stays: returned idle_timeout login
a node that is not alive is not waited for
    a alone; a login u; a settle; b settle; history; a end u; a drain
    -> u: login idle_timeout
a renamed node keeps its sessions
    BUSY; a end gone; a round reply; fence a; a login new; a probe; a fenced; a rename a2; a settle
    -> stays: login; gone: login idle_timeout; back: login; new: login
a renamed node counts what it wrote under its old id
    a login u; a round reply; a rename a2; a settle; counted
    -> u: login
a login behind a queued end is pending and written after it
    a login u phone; a settle; b login u desk; b settle; a probe; flush; a end u phone; a login u phone;
    a probe; a drain; event_count 0; b settle; a at b; b end u desk; b drain; a has u; a settle
    -> u: returned
an end in flight when Redis went away waits for others too
    a login u phone; a settle; b settle; a probe; a end u phone; a round request; b login u desk; a probe;
    a returned; a drain; event_count 1; b settle; a settle; b has u
    -> u: login
a registration replaces a dead node's session
    PREDECESSOR; THIRD_FINDS_IT_FULL; new settle; new yields
    -> u1: login; u2: login; u3: login; gap: 1
a registration yields to a younger session
    PREDECESSOR; THIRD_FINDS_IT_FULL; new wait 5; younger at new; younger login u1; younger settle;
    new settle; new yields u1
    -> u1: login; u2: login; u3: login
# Sessions that have been silent too long to be registered
the end of one writes what Redis lost, of phone
    a login u phone; a settle; flush; a unheard u; a settle; event_count 0; a end u phone; a settle
    -> u: returned idle_timeout
the end of one writes what Redis lost, of phone and desk
    a login u phone; a login u desk; a settle; flush; a unheard u; a settle; event_count 0; a end u phone;
    a end u desk; a settle
    -> u: returned idle_timeout
it writes nothing more if Redis lost nothing
    a login u; a settle; a unheard u; history; a settle; event_count 2; a end u; a settle
    -> u: login node_down
one that sends again registers and ends as usual
    a login u; a settle; flush; a unheard u; a settle; a registers u; a end u; a settle
    -> u: returned idle_timeout
"""


@pytest.mark.parametrize(("name", "steps", "outcome"), rows(ROWS))
def test_final_events_of_a_scenario(
    request: pytest.FixtureRequest, name: str, steps: str, outcome: str
) -> None:
    server: Server = request.getfixturevalue("durable_server" if "with its file" in name else "server")
    play = Play(server)
    play.run("; ".join(PARTS.get(step, step) for step in steps.split("; ")))
    stream = events(server.client)
    found: dict[str, str] = {}
    for event in stream:
        uid, word = event.get("uid", "gap"), event.get("reason") or event["dropped"]
        found[uid] = f"{found[uid]} {word}" if uid in found else word
    text = outcome.removeprefix("-> ")
    expected = dict(each.split(": ") for each in PARTS.get(text, text).split("; "))
    assert {uid: found.get(uid) for uid in expected} == expected
    assert check_alternation(stream) == {uid for uid, _, _ in online_sessions(server.client)}
    if [*play.nodes] == ["a"] and steps.endswith("a settle"):
        assert_converged(play.nodes["a"], server)
    for node in play.nodes.values():
        node.store.close()


@pytest.mark.parametrize("shards", [1, 16])
def test_a_full_outbox_is_one_gap_and_then_the_live_sessions(server: Server, shards: int) -> None:
    node = ManualNode(server.url, shards=shards, max_items=100)
    for i in range(50):
        node.login(f"user{i}")
    node.settle()
    for i in range(50):  # Redis is unreachable: 100 changes fit, 150 do not
        node.end(f"user{i}")
        node.login(f"user{i + 25}", "phone")
        node.login(f"user{i + 50}")
        node.end(f"user{i + 50}")
        node.login(f"late{i}")
    assert node.outbox.statistics().skipped_total == 150
    node.settle()
    assert_converged(node, server)
    gaps = [e for s in range(shards) for e in events(server.client, s) if e["type"] == "gap"]
    assert sum(int(gap["dropped"]) for gap in gaps) == 150
    assert len(gaps) <= shards
    node.store.close()


def test_entry_ids_never_fall_behind_those_the_node_saw(server: Server) -> None:
    """Redis wrote with its clock ahead, lost its data, and its clock is right again."""
    node = ManualNode(server.url)
    node.login("u")
    node.settle()
    ahead_ms = int(time.time() * 1000) + 10_000_000
    server.client.xadd(node.keys.events(0), {"type": "gap"}, id=f"{ahead_ms}-0")
    node.probe()
    server.client.flushall()
    node.settle()
    node.store.close()
    (event,) = events(server.client)
    assert int(event["id"].split("-")[0]) >= ahead_ms


def test_a_gap_is_counted_even_if_the_answer_to_the_opening_was_lost(server: Server) -> None:
    node = ManualNode(server.url, max_items=10)
    node.settle()
    for n in range(12):
        node.login(f"u{n}")
    while not any(event["type"] == "gap" for event in events(server.client)):
        taken = node.next_step(node.writers[0])
        node.round(Loss.REPLY if taken is not None and getattr(taken, "opening", None) else Loss.NONE)
        node.now += 0.5
    node.writers[0].request_resync()
    node.settle()
    node.store.close()
    assert node.transitions.report() == written(events(server.client))
    assert node.transitions.report()["gap"]["gap"] == 2, "the second opening cannot know that of the first"
