"""Sessions compared with records: changes made to Redis by hand are found and repaired."""

import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import trio

from presence.core.changes import Change, Op, SessionName
from presence.core.profiles import PLAIN, Profile
from presence.outbox import reconciler as comparison_module
from presence.outbox import relay as relay_module
from presence.outbox.queue import Outbox
from presence.outbox.reconciler import (
    MAX_SESSIONS_PER_TURN,
    MAX_URGENT_SESSIONS_PER_TURN,
    LocalSessions,
    Reconciler,
)
from presence.outbox.relay import Relay, RelayCallbacks
from presence.outbox.replies import NodeNotice, Reply, ReplyStatus, Superseded
from presence.outbox.shard_writer import ShardWriter
from presence.store.embedded import find_binary
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from tests.store.driving import events, online_sessions, owned, record
from tests.store.servers import Server
from tests.support.waiting import until

KEYS = Keys()
INBOX_LIMIT = 50  # see lib/notices.lua


def named(uid: str) -> SessionName:
    return SessionName(uid, "", f"s-{uid}")


class Sessions:
    """The sessions of a node."""

    def __init__(self, count: int = 0) -> None:
        self.live = {f"u{n}": named(f"u{n}") for n in range(count)}
        self.profiles: dict[str, Profile] = {}
        self.local_sessions = LocalSessions(lambda: iter([*self.live.values()]), self.shown_as)

    def shown_as(self, name: SessionName) -> Profile | None:
        return self.profiles.get(name.uid, PLAIN) if self.live.get(name.uid) == name else None


def comparison(sessions: Sessions) -> tuple[Reconciler, ShardWriter]:
    outbox = Outbox(KEYS.shard, 1, max_items=10)
    return Reconciler(sessions.local_sessions, KEYS.shard), ShardWriter(0, "a", outbox, lambda _shard: [])


def answer(**fields: object) -> Reply:
    return Reply(ReplyStatus.OK, "history", **fields)  # type: ignore[arg-type]  # as given by each test


def test_a_walk_covers_all_sessions_and_continues_where_it_stopped() -> None:
    compared, writer = comparison(Sessions(MAX_SESSIONS_PER_TURN + 1))
    asked = []
    for turn in range(6):
        (step,) = compared.next([writer])
        asked.append((len(step.sessions), step.cursor))
        compared.differences(step, answer(cursor=str(turn + 1)))
    assert asked == [(n, str(turn)) for turn, n in enumerate((0, MAX_SESSIONS_PER_TURN, 1) * 2)]


def test_a_difference_counts_once_it_is_confirmed() -> None:
    compared, writer = comparison(Sessions(2))
    compared.next([writer])
    (step,) = compared.next([writer])
    assert compared.differences(step, answer(owned=(named("ghost"), named("u0")), missing=(1,))) == 0
    (again,) = compared.next([writer])
    assert {"ghost", "u1"} <= {each.uid for each in again.sessions}
    missing = [number for number, each in enumerate(again.sessions) if each.uid == "u1"]
    assert compared.differences(again, answer(missing=tuple(missing))) == 2
    assert compared.differences(again, answer(missing=tuple(missing))) == 0, "asked about a third time only"


def test_sessions_of_a_busy_shard_are_compared_later() -> None:
    sessions = Sessions(20)
    shards = {name: number % 2 for number, name in enumerate(sessions.live)}
    compared = Reconciler(sessions.local_sessions, shards.__getitem__)
    outbox = Outbox(shards.__getitem__, 2, max_items=10)
    busy, idle = (ShardWriter(shard, "a", outbox, lambda _shard: []) for shard in (0, 1))
    compared.next([idle])
    assert compared.next([]) == [], "the walk pauses"
    assert [len(step.sessions) for step in compared.next([idle])] == [10]
    assert [len(step.sessions) for step in compared.next([busy, idle])] == [10, 0]


def test_sessions_that_were_too_many_for_a_call_are_compared_before_others() -> None:
    compared, writer = comparison(Sessions(3 * MAX_SESSIONS_PER_TURN))
    compared.next([writer])
    (first,) = compared.next([writer])
    compared.differences(first, answer(uncompared=MAX_SESSIONS_PER_TURN - 10, missing=(3,)))
    (second,) = compared.next([writer])
    suspect, rest = first.sessions[3], first.sessions[10:]
    assert second.sessions[: 1 + len(rest)] == (suspect, *rest)
    assert len(second.sessions) == 1 + MAX_SESSIONS_PER_TURN, "the walk goes on no faster than answers"


def test_an_urgent_walk_has_larger_turns_and_is_repeated_if_more_was_missed() -> None:
    compared, writer = comparison(Sessions(MAX_URGENT_SESSIONS_PER_TURN + MAX_SESSIONS_PER_TURN))
    compared.next([writer])
    compared.next([writer])
    compared.run_soon()
    asked = []
    while compared.is_urgent:
        steps = compared.next([writer])
        asked.append(len(steps[0].sessions))
        if len(asked) == 1:
            compared.run_soon()
            compared.run_soon()
    assert asked == [MAX_URGENT_SESSIONS_PER_TURN, MAX_SESSIONS_PER_TURN, 0] * 2
    steps = compared.next([writer])
    compared.unanswered(steps)  # sessions without an answer are asked about again
    (again,) = compared.next([writer])
    assert set(steps[0].sessions) <= set(again.sessions)


@pytest.fixture
def server() -> Iterator[Server]:
    binary = find_binary()
    assert binary
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        server = Server(binary, Path(folder))
        yield server
        server.close()


class ReconcilingNode:
    """A relay on a real server, with short pauses between comparisons."""

    def __init__(self, server: Server, node: str = "a") -> None:
        self.superseded: set[str] = set()  # users whose sessions other nodes have taken over
        self.sessions = Sessions()
        self.outbox = Outbox(KEYS.shard, 1, max_items=1000)
        self.store = RedisStore(server.url, Shape(KEYS, maxlen=1000, seen_retention_ms=10**9))
        self.relay = Relay(
            self.outbox,
            self.store,
            node=node,
            live=lambda _shard: [self.change(Op.REGISTER, each) for each in self.sessions.live.values()],
            callbacks=RelayCallbacks(self.gone, self.gone, lambda: "c"),
            local_sessions=self.sessions.local_sessions,
        )

    def change(self, op: Op, each: SessionName) -> Change:
        now, now_ms = time.monotonic(), int(time.time() * 1000)
        code = {Op.LOGIN: 1, Op.REGISTER: 2, Op.END: 100}[op]
        profile = self.sessions.profiles.get(each.uid, PLAIN)
        return Change(op, each.uid, each.device, each.session, code, now, now_ms, now_ms, 30_000, profile)

    def login(self, uid: str, session: str = "") -> None:
        each = SessionName(uid, "", session or f"s-{uid}")
        self.sessions.live[uid] = each
        self.outbox.append(self.change(Op.LOGIN, each))

    def gone(self, superseded: Sequence[NodeNotice | Superseded]) -> None:
        for each in superseded:
            self.superseded.add(each.uid)
            self.sessions.live.pop(each.uid, None)


@pytest.fixture
async def reconciling(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ReconcilingNode]:
    monkeypatch.setattr(comparison_module, "COMPARE_INTERVAL_S", 0.05)
    monkeypatch.setattr(relay_module, "PROBE_INTERVAL_S", 0.05)
    reconciling = ReconcilingNode(server)
    await reconciling.relay.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reconciling.relay.run)
        for n in range(20):
            reconciling.login(f"u{n}")
        assert await reconciling.relay.drain(5) == 0
        yield reconciling
        nursery.cancel_scope.cancel()
    reconciling.store.close()


async def test_sessions_that_a_sweep_would_not_find_are_registered_again(
    reconciling: ReconcilingNode, server: Server
) -> None:
    every = {tuple(each) for each in reconciling.sessions.live.values()}
    entries = len(events(server.client))
    server.client.delete(KEYS.sessions(0, "a"))
    await until(lambda: owned(server.client, "a") == every)
    assert reconciling.relay.statistics().differences == len(every)
    assert len(events(server.client)) == entries


@pytest.mark.parametrize("what", ["records deleted", "changed states", "a ghost"])
async def test_records_that_differ_are_written_again(
    reconciling: ReconcilingNode, server: Server, what: str
) -> None:
    sessions = reconciling.sessions
    await trio.sleep(0.3)
    statistics = reconciling.relay.statistics()
    assert (statistics.resyncs, statistics.differences) == (0, 0), "without differences nothing is done"
    if what == "records deleted":
        server.client.delete(KEYS.online(0))
    elif what == "changed states":  # and the update was lost
        sessions.profiles |= {"u7": Profile("away", meta='{"mood":"busy"}'), "u8": Profile("away")}
    else:  # ended without notice
        del sessions.live["u7"]
    await until(lambda: online_sessions(server.client) == {tuple(each) for each in sessions.live.values()})
    await until(lambda: reconciling.relay.statistics().differences)
    assert reconciling.relay.statistics().differences >= {"records deleted": 20, "changed states": 2}.get(
        what, 1
    )

    def shown(uid: str) -> tuple[object, object]:
        session = record(server.client, uid)["sessions"][""]
        return session.get("away"), session.get("meta")

    if what == "changed states":
        await until(lambda: (shown("u7"), shown("u8")) == ((True, '{"mood":"busy"}'), (True, None)))
        assert shown("u6") == (None, None)
    if what == "a ghost":
        assert ("u7", "", "s-u7") not in owned(server.client, "a")
        last = events(server.client)[-1]
        assert (last["type"], last["uid"], last["reason"]) == ("offline", "u7", "node_down")


async def test_supersessions_dropped_from_the_inbox_are_found_soon(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "PROBE_INTERVAL_S", 0.05)
    monkeypatch.setattr(comparison_module, "COMPARE_INTERVAL_S", 1000.0)
    here, there = ReconcilingNode(server), ReconcilingNode(server, node="b")
    await here.relay.start()
    await there.relay.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.relay.run)
        nursery.start_soon(there.relay.run)
        for n in range(INBOX_LIMIT + 10):
            here.login(f"u{n}")
        assert await here.relay.drain(5) == 0
        for n in range(INBOX_LIMIT + 10):
            there.login(f"u{n}", f"elsewhere-{n}")
        await until(lambda: here.superseded == {f"u{n}" for n in range(INBOX_LIMIT + 10)})
        nursery.cancel_scope.cancel()
    here.store.close()
    there.store.close()
