"""Random calls of the store's scripts: nodes that open, number wrongly, lose their place, get swept.

A new script gets a method that returns a call of it, and a place in `CALLS`.
"""

import json
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import msgpack

from presence.common.errors import StoreError
from presence.core.changes import Change, Op, SessionName
from presence.core.profiles import PLAIN, Profile
from presence.outbox.overflow import SkippedChanges
from presence.outbox.steps import Batch, Compare, Counter, Fencing, Item, Opening, Reindex, Retirement, Sweep
from presence.rooms.projector import RoomProjector
from presence.store.keys import Keys
from presence.store.script_arguments import MAX_FIELDS_PER_CALL, Shape
from presence.store.script_runner import Call, Command, source
from tests.simulation.twins import Twins

KEYS: Final = Keys()
NODES: Final = ("a", "b", "c")
UIDS: Final = ("ann", "bob", "é", 'q"uote', "slash/\\", "dot.", "eve")
DEVICES: Final = ("", "", "phone", '"')
SESSIONS: Final = tuple(f"s{i}" for i in range(5))
CHANNELS: Final = tuple(
    name.encode()
    for name in (
        KEYS.online_channel,
        *(KEYS.control_channel(node) for node in NODES if node != "c"),
        KEYS.watchers_channel(0),
        KEYS.changes_channel(0),
        *(KEYS.user_channel(uid) for uid in UIDS[::2]),
    )
)
PROFILES: Final = (
    PLAIN,
    PLAIN,
    Profile("away"),
    Profile(meta='{"v":"1 \\" é"}'),
    Profile("away", '{"$bin":"00"}'),
    Profile(rooms="hall"),
    Profile("invisible", rooms='a"b hall é'),
)
PROJECTOR_S: Final = 2.0  # between two runs of a projector, by its clock
COMMAND: Final = "return redis.call(unpack(ARGV))"
AT_MS: Final = 1_700_000_000_000
NOW_S: Final = 1000.0  # monotonic

# By the method that returns a call, or makes some itself: how often.
CALLS: Final = {
    **{"apply": 40, "open": 12, "retire": 5, "fence": 2, "sweep": 5, "probe": 8},
    **{"kick": 4, "forget": 2, "compare": 5, "reindex": 3, "lease": 8, "claim": 4, "damage": 4},
    **{"project": 12, "rebuild": 2},
}


class TwinScripting:
    """Calls of a projector, made on both servers: what it uses of `Scripting`."""

    def __init__(self, twins: Twins) -> None:
        self._twins = twins

    def evaluate(self, calls: Sequence[Call]) -> list[Any]:
        return [self._answer(source(each.script), each.keys, each.arguments) for each in calls]

    def commands(self, _key: str, commands: Sequence[Command]) -> list[Any]:
        answers = [self._answer(COMMAND, [], [*words]) for words in commands]
        for answer in answers:
            if isinstance(answer, StoreError):
                raise answer
        return answers

    def connection_number(self, _key: str) -> int:
        return 1

    def _answer(self, text: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        is_ok, answer = self._twins.attempt(text, keys, arguments)
        return answer if is_ok else StoreError(str(answer))


class ScriptPlay:
    """One sequence of calls; it learns its nodes' counters from the answers."""

    def __init__(self, random: Random, twins: Twins) -> None:
        self._random = random
        self._twins = twins
        self._counters = dict.fromkeys(NODES, (0, 0))  # generation, n
        retention_ms = random.choice((0, 10**13))
        max_sessions, policy = random.choice((1, 2, 8)), random.choice(("oldest", "newest"))
        self._shape = Shape(KEYS, 1_000_000, retention_ms, max_sessions, policy)
        self._projector_s = 0.0
        self._room_events = random.choice(("all", "occupancy"))
        self._projector = self._make_projector()

    def step(self) -> None:
        (name,) = self._random.choices(list(CALLS), list(CALLS.values()))
        call: Call | None = getattr(self, name)()
        if call is None:
            return
        text = source(call.script) if call.script else COMMAND
        self._twins.run(text, call.keys, call.arguments)

    # What calls are made of

    def _history(self) -> str:
        return self._twins.fake.replication_id if self._random.random() < 0.97 else "0" * 40

    def _counter(self, node: str, generation: int, n: int) -> Counter:
        if self._random.random() < 0.1:
            generation += self._random.choice((-1, 1))
        if self._random.random() < 0.1:
            n += self._random.choice((-1, -1, 1, 2))
        return Counter(node, max(0, generation), max(1, n))

    def _present_counter(self) -> Counter:
        node = self._random.choice(NODES)
        return self._counter(node, *self._counters[node])

    def _item(self) -> Item:
        chance = self._random
        op = chance.choice(
            (
                Op.LOGIN,
                Op.LOGIN,
                Op.REGISTER,
                Op.RECLAIM,
                Op.UPDATE,
                Op.UPDATE,
                Op.PENDING_LOGIN,
                Op.END,
                Op.END,
            )
        )
        codes = {Op.LOGIN: 1, Op.REGISTER: 2, Op.RECLAIM: 2, Op.UPDATE: 5, Op.PENDING_LOGIN: 1}
        code = codes.get(op) or chance.choice((100, 201))
        at_ms = AT_MS + chance.randrange(10**6)
        age_s = chance.choice((0.0, 0.0004, 0.9, 1.5, 4.0, 9.0))
        change = Change(
            op,
            chance.choice(UIDS),
            chance.choice(DEVICES),
            chance.choice(SESSIONS),
            code,
            NOW_S - age_s,
            at_ms,
            at_ms - chance.choice((0, 1, 30_000)),
            chance.choice((5_000, 30_000)),
            chance.choice(PROFILES),
            chance.choice((0, 0, 6_000)),
        )
        return Item(change, restores=chance.random() < 0.3)

    def _items(self) -> tuple[Item, ...]:
        return tuple(self._item() for _ in range(self._random.choice((0, 1, 1, 2, 5, 12))))

    # The calls

    def apply(self) -> Call:
        node = self._random.choice(NODES)
        generation, n = self._counters[node]
        counter = self._counter(node, generation, n + 1)
        if counter == Counter(node, generation, n + 1):
            self._counters[node] = generation, n + 1
        complete = self._random.random() < 0.3
        return self._shape.call(Batch(0, counter, self._history(), self._items(), NOW_S, complete=complete))

    def open(self) -> Call:
        chance, node = self._random, self._random.choice(NODES)
        generation = self._counters[node][0] + 1
        self._counters[node] = generation, 1
        gap = SkippedChanges(3, AT_MS, AT_MS + 7, NOW_S) if chance.random() < 0.3 else None
        floor = chance.choice(("0-0", "0-0", f"{AT_MS}-5", f"{2 * AT_MS + chance.randrange(9)}-1"))
        opening = Opening(chance.choice((node, node, *NODES, "gone")), floor, gap)
        history = chance.choice(("", "", self._history()))
        counter = self._counter(node, generation, 1)
        return self._shape.call(Batch(0, counter, history, self._items(), NOW_S, opening))

    def retire(self) -> Call:
        counter = self._present_counter()
        latest_ms = self._random.choice((0, AT_MS, 2 * AT_MS))
        return self._shape.call(Retirement(0, counter, self._history(), "0", latest_ms))

    def fence(self) -> Call:
        counter = self._present_counter()
        return self._shape.call(Fencing(0, counter, self._history(), self._random.choice((*NODES, "new"))))

    def sweep(self) -> Call:
        counter = self._present_counter()
        waited_ms, latest_ms = self._random.choice((0, 10_000, 60_000)), self._random.choice((0, AT_MS))
        other = self._random.choice(NODES)
        return self._shape.call(Sweep(0, counter, self._history(), other, "0", waited_ms, latest_ms))

    def probe(self) -> Call:
        node, read = self._random.choice(NODES), self._random.choice((0, 0, 1, 3, 99))
        return Call("probe", self._shape.key_names(0, node), self._shape.probe_arguments(0, node, read))

    def kick(self) -> Call:
        uid = self._random.choice((*UIDS, "nobody"))
        return self._shape.operator_call("kick", 0, [uid, "ann@host"])

    def forget(self) -> Call:
        return self._shape.operator_call("forget", 0, self._random.sample(UIDS, 3))

    def compare(self) -> Call:
        """Compare one page with all that the node owns: servers may end a page where they like."""
        counter = self._present_counter()
        chance = self._random
        names = tuple(
            SessionName(chance.choice(UIDS), chance.choice(DEVICES), chance.choice(SESSIONS))
            for _ in range(chance.randrange(6))
        )
        shown = tuple(chance.choice(PROFILES) for _ in names)
        return self._shape.call(Compare(0, counter, self._history(), "0", MAX_FIELDS_PER_CALL, names, shown))

    def reindex(self) -> Call:
        return self._shape.call(
            Reindex(0, self._present_counter(), self._history(), "0", MAX_FIELDS_PER_CALL)
        )

    def lease(self) -> Call:
        sweeping = self._random.sample(NODES, self._random.choice((0, 0, 1, 2)))
        stats = json.dumps({"sessions": self._random.randrange(9)})
        counter, lease_ms = self._random.randrange(1000), self._random.choice((1, 10_000))
        node = self._random.choice(NODES)
        return Call("lease", KEYS.lease_keys, [node, counter, lease_ms, stats, msgpack.packb(sweeping)])

    def claim(self) -> Call:
        node = self._random.choice(NODES)
        seen = self._twins.fake.execute(b"HGET", KEYS.lease_keys[1].encode(), node.encode()) or b""
        if self._random.random() < 0.2:
            seen = b"another"
        wanted = self._random.choice(("", f"7 {self._random.choice(NODES)} 1"))
        return Call("claim", KEYS.lease_keys, [node, seen, wanted, self._random.choice((0, 86_400_000))])

    def project(self) -> None:
        """Run the projector of rooms, or another of its name."""
        if self._random.random() < 0.1:
            self._projector = self._make_projector()
        self._projector_s += PROJECTOR_S
        self._projector.run_once()

    def _make_projector(self) -> RoomProjector:
        projector = RoomProjector(
            "redis://twins",
            shards=1,
            events=self._room_events,
            clock=lambda: self._projector_s,
            name="projector",
        )
        projector._scripting = TwinScripting(self._twins)  # type: ignore[assignment]
        return projector

    def rebuild(self) -> Call:
        return Call("", [], ["HSET", KEYS.rooms_state(0), "rebuild", f"token{self._random.randrange(99)}"])

    def damage(self) -> Call:
        """Do by hand what should not happen, or what another version may do."""
        chance, node = self._random, self._random.choice(NODES)
        uid, its = chance.choice(UIDS), KEYS.node(0, node)
        words: list[Any] = chance.choice(
            [
                ["HSET", its, "fence", "12"],
                ["HDEL", its, "fence"],
                ["HDEL", its, "fence", "gen"],
                ["DEL", its],
                ["HSET", its, "inbox", "{broken"],
                ["HSET", its, f"{uid} phone", "1 s2", f"{uid}  held", "[]"],
                ["DEL", KEYS.sessions(0, node)],
                ["HSET", KEYS.sessions(0, node), f"{uid} ", "1 s1"],
                ["HSET", KEYS.pending_logins(0, node), uid, "[[7]]"],
                ["DEL", KEYS.shard_meta(0)],
                ["HDEL", KEYS.peer_traces(0), node],
                ["HDEL", KEYS.online(0), uid],
                ["HSET", KEYS.online(0), uid, '{"id": "1-1"}'],
                ["HSET", KEYS.online(0), uid, "[" * 3],
                ["SET", KEYS.online(0), "of another type"],
                ["DEL", KEYS.online(0)],
                ["DEL", KEYS.lease_keys[3]],
                ["ZADD", KEYS.seen(0), "1", uid],
                ["DEL", KEYS.room_sources(0)],
                ["HSET", KEYS.room("hall"), uid, "1-1 -"],
                ["SET", KEYS.room_sizes(0), "of another type"],
                ["DEL", KEYS.room_sizes(0)],
                ["DEL", KEYS.rooms_state(0)],
            ]
        )
        return Call("", [], words)
