"""Every script is stopped before its k-th command, for every k, and its call is then repeated.

After the stop nothing is written, or the repeated call completes it once: in the end all keys are those of a
call that was not stopped, and the same was published. The clock of the scripts stands still, so that both can
be compared as they are. Messages are never sent again, so what is said of a stopped call that sends them must
be true of what it has published.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgpack
import pytest

from loadtest.servers import redis_binary
from presence.core.profiles import Profile
from presence.followups import script_calls
from presence.outbox.overflow import SkippedChanges
from presence.outbox.steps import Batch, Compare, Counter, Fencing, Opening, Reindex, Retirement, Step, Sweep
from presence.rooms import script_calls as room_calls
from presence.store import script_runner
from presence.store.ban_table import BanTable
from presence.store.keys import Keys
from presence.store.redis_client import ResponseError
from presence.store.redis_store import RedisLeaseTable, RedisStore
from presence.store.room_reads import occupancy_call
from presence.store.roster_table import RosterChange, RosterTable
from presence.store.script_arguments import Shape
from presence.store.script_runner import Call, Scripting
from presence.timers.expiry_timer import ExpiryTimer
from presence.timers.interface import Event
from presence.timers.kinds import DelayQueue, RingTimer
from presence.timers.redis_wheel import RedisWheel
from presence.timers.shared_timer import Leasing, SharedTimer
from tests.store.driving import NOW_S, Hand, end, hold, login, update
from tests.store.servers import Server

SHAPE: Final = Shape(
    Keys(),
    maxlen=1_000_000,
    seen_retention_ms=10**13,
    device_events=True,
    max_sessions=2,
    session_policy="newest",
)
CLOCK: Final = "{'4100000000', '0'}"  # later than now: alarms of timers must not expire
COMMANDS_MAX: Final = 200  # of one call here
END: Final = "end"
STOPPED: Final = "stopped"  # the channel on which a script says that it was
STOPS: Final = """
local whole, commands, stop = redis, 0, %d
local function is_stop()
  commands = commands + 1
  if commands == stop then whole.call('PUBLISH', 'stopped', '') end
  return commands == stop
end
local redis = {error_reply = whole.error_reply, status_reply = whole.status_reply, sha1hex = whole.sha1hex,
  acl_check_cmd = whole.acl_check_cmd}
redis.call = function(...) if is_stop() then error('stopped') end return whole.call(...) end
redis.pcall = function(...) if is_stop() then return {err = 'ERR stopped'} end return whole.pcall(...) end
"""


@dataclass(frozen=True)
class Scene:
    name: str
    act: Callable[[Hand, Hand], Step | Call]  # prepares with two nodes, and returns the call to stop
    is_repeated: bool = True  # if it is stopped


def _apply(a: Hand, b: Hand) -> Step:
    b.apply(login("u", "s1", "desk"), login("w", "s2"), login("x", "s3"))
    changes = [
        *(login("u", "s4", "phone"), login("u", "s5", "desk"), login("n", "s6"), end("n", "s6")),
        *(login("m", "s7"), update("m", "s7"), login("w", "s8"), hold("x", "s9", "tv")),
    ]
    return replace(a.batch(changes, a.n + 1), complete=True)


def _apply_ends(a: Hand, b: Hand) -> Step:
    a.apply(login("u", "s1"), login("w", "s2"), login("w", "s3", "desk"))
    b.apply(hold("u", "s4", "tv"))
    return a.batch([end("u", "s1"), end("w", "s2"), end("w", "s3", "desk"), login("u", "s5")], a.n + 1)


def _open(a: Hand, _: Hand) -> Step:
    a.apply(login("u", "s1"))
    opening = Opening(a.node, "4100000000900-7", SkippedChanges(3, 1, 2, 0.0))
    return Batch(0, Counter("a2", 2, 1), "", (), NOW_S, opening=opening)


def _retire(a: Hand, _: Hand) -> Step:
    a.apply(login("u", "s1"), login("w", "s2"), login("w", "s3", "desk"))
    a.open(2)
    return Retirement(0, Counter(a.node, a.generation, a.n), a.replication_id, "0", 0)


def _sweep(a: Hand, b: Hand) -> Step:
    a.apply(login("u", "s1"), login("w", "s2"), login("x", "s3"))
    b.apply(login("w", "s4", "desk"), hold("x", "s5"))
    b.fence("a")
    return Sweep(0, Counter(b.node, b.generation, b.n), b.replication_id, "a", "0", 10**9, 0)


def _fence(a: Hand, b: Hand) -> Step:
    return Fencing(0, Counter(b.node, b.generation, b.n), b.replication_id, a.node)


def _compare(a: Hand, _: Hand) -> Step:
    a.apply(login("u", "s1"))
    return Compare(0, Counter(a.node, a.generation, a.n), a.replication_id, "0", 10, (), ())


def _forget(a: Hand, _: Hand) -> Call:
    a.apply(login("u", "s1"), end("u", "s1"), login("w", "s2"))
    return SHAPE.operator_call("forget", 0, ["u", "w"])


RULES: Final = msgpack.packb(
    [["mail", -1000, [], ""], ["call", 60_000, [], ""]]
)  # one is due at once: the clock stands


def _run(a: Hand, _: Hand) -> Call:
    a.apply(login("u", "s1"), end("u", "s1"), login("w", "s2"), end("w", "s2"))
    run = script_calls.run_call(SHAPE.keys, 0, "s", RULES, has_begun=True, kept=1000)
    a.store.evaluate([run])
    a.apply(login("u", "s3"), login("v", "s4"), end("v", "s4"))
    return run


def caught(scripting: Scripting, operation: Callable[[], object]) -> Call:
    """Return the call of a script that an operation would make."""
    found: list[Call] = []

    def catch(calls: Sequence[Call]) -> list[Any]:
        found.extend(calls)
        raise _CaughtError

    with mock.patch.object(scripting, "evaluate", catch), pytest.raises(_CaughtError):
        operation()
    (call,) = found
    return call


class _CaughtError(Exception):
    pass


# Operators


def _kick(a: Hand, b: Hand) -> Call:
    a.apply(login("u", "s1"))
    b.apply(login("u", "s2", "desk"))
    a.store.commands(
        SHAPE.keys.sessions(0, "a"), [("DEL", SHAPE.keys.sessions(0, "a"))]
    )  # it restores the index
    return SHAPE.operator_call("kick", 0, ["u", "op"])


def _reindex(a: Hand, b: Hand) -> Step:
    a.apply(login("u", "s1"), login("w", "s2"))
    b.apply(login("x", "s3", "desk"))
    a.store.commands(SHAPE.keys.sessions(0, "a"), [("DEL", SHAPE.keys.sessions(0, "a"))])
    return Reindex(0, Counter(b.node, b.generation, b.n), b.replication_id, "0", 100)


def _bans(a: Hand, _: Hand) -> Call:
    with closing(BanTable(a.store.url, SHAPE.keys)) as bans:
        bans.add(["u", "w"], None, None, "", "op")
        bans.add(["u"], "desk", 3600.0, "", "op")
        return caught(bans, lambda: bans.lift(["u"], None))


def _bans_added(a: Hand, _: Hand) -> Call:
    with closing(BanTable(a.store.url, SHAPE.keys)) as bans:
        bans.add(["u"], None, None, "", "op")
        return caught(bans, lambda: bans.add(["u", "w", "x"], None, 3600.0, "", "op"))


def _rosters(a: Hand, _: Hand) -> Call:
    with closing(RosterTable(a.store.url, SHAPE.keys, 1_000_000)) as rosters:
        rosters.change([RosterChange("u", (), ["w", "x"], is_new=True)])
        changes = [RosterChange("u", ["w"], ["y"]), RosterChange("w", (), ["u"])]
        return caught(rosters, lambda: rosters.change(changes))


MESSAGES: Final = (b"one", b"two")  # the first one has recipients at both nodes


def _deliver(a: Hand, b: Hand) -> Call:
    a.apply(login("u", "s1"))
    b.apply(login("u", "s2", "desk"), login("w", "s3"))
    messages = msgpack.packb([b"u", MESSAGES[0], b"w", MESSAGES[1]], use_bin_type=False)
    return SHAPE.operator_call("deliver", 0, ["c", "", messages, msgpack.packb({})])


def _probe(a: Hand, _: Hand) -> Call:
    a.apply(login("u", "s1"))
    a.store.evaluate([SHAPE.operator_call("kick", 0, ["u", "op"])])
    return Call("probe", SHAPE.key_names(0, "a"), SHAPE.probe_arguments(0, "a", 0))


def _types(a: Hand, _: Hand) -> Call:
    a.store.commands(SHAPE.keys.seen(0), [("SET", SHAPE.keys.seen(0), "x")])
    return Call("types", [SHAPE.keys.online(0), SHAPE.keys.seen(0)], ["HLEN", "ZSCORE"])


# Leases of nodes


def _lease(a: Hand, _: Hand) -> Call:
    with closing(RedisLeaseTable(a.store.url, SHAPE.keys, 3.0)) as table:
        table.renew("a", 1, "{}", [])
        for dead in ("d", "e"):
            table.renew(dead, 1, "{}", [])
            table.claim(dead, "1", "1 a 1")
        return caught(table, lambda: table.renew("a", 2, '{"users":1}', ["d", "e"]))


def _claim(a: Hand, _: Hand) -> Call:
    with closing(RedisLeaseTable(a.store.url, SHAPE.keys, 3.0)) as table:
        table.renew("d", 1, "{}", [])
        return caught(table, lambda: table.claim("d", "1", "1 a 1"))


def _claim_removal(a: Hand, _: Hand) -> Call:
    with closing(RedisLeaseTable(a.store.url, SHAPE.keys, 3.0)) as table:
        table.renew("d", 1, "{}", [])
        table.claim("d", "1", "1 a 1")
        return caught(table, lambda: table.remove("d", "1 a 1"))


# Follow-ups


def _add_followup(a: Hand, _: Hand) -> Call:
    a.apply(login("u", "s1"))
    return script_calls.add_call(SHAPE.keys, script_calls.Addition("mail:u:1", "u", "mail", 60.0, "text"))


def _cancel_followups(a: Hand, b: Hand) -> Call:
    a.store.evaluate([_add_followup(a, b)])
    for number, uid in enumerate(["u", "w"]):
        what = script_calls.Addition(f"call:{uid}:{number}", uid, "call", 60.0, "")
        a.store.evaluate([script_calls.add_call(SHAPE.keys, what)])
    return script_calls.cancel_call(SHAPE.keys, 0, ["u", "w"])


def _reindex_followups(a: Hand, b: Hand) -> Call:
    _cancel_followups(a, b)
    lost = script_calls.script_keys(SHAPE.keys, 0)
    a.store.commands(lost[1], [("DEL", lost[1], lost[6])])
    return script_calls.reindex_call(SHAPE.keys, 0, "0")


def _recount_followups(a: Hand, b: Hand) -> Call:
    _cancel_followups(a, b)
    return script_calls.recount_call(SHAPE.keys, 0, 1000, 0)


# Rooms


def _project(a: Hand, _: Hand) -> Call:
    """One room gets its first member, one loses its last one, and one gets another."""

    def call(position: bytes, to: bytes, **rooms: tuple[bytes, ...]) -> Call:
        groups = [each for room, item in rooms.items() for each in (room.encode(), len(item), *item)]
        return room_calls.project_call(
            SHAPE.keys, 0, 0, position=position, to=to, groups=groups, walk=b"token", has_member_events=True
        )

    first = call(b"", b"1-0 e", lobby=(b"u", b"1-0 -", b"1", b"login"), game=(b"w", b"1-0 i", b"1", b"login"))
    a.store.evaluate([first])
    lobby = (b"v", b"2-0 i", b"2", b"rooms")
    new, game = (b"u", b"2-0 a", b"2", b"rooms"), (b"w", b"2-0", b"2", b"rooms")
    return call(b"1-0 e", b"2-0 e", new=new, game=game, lobby=lobby)


def _begin_rooms(a: Hand, _: Hand) -> Call:
    a.apply(login("u", "s1", profile=Profile(rooms="game lobby")))
    return room_calls.read_call(SHAPE.keys, 0, "p", room_calls.BEGIN, b"e")


def _reset_rooms(a: Hand, b: Hand) -> Call:
    a.store.evaluate([_begin_rooms(a, b)])
    return room_calls.read_call(SHAPE.keys, 0, "p", room_calls.RESET, b"f")


def _read_rooms(a: Hand, b: Hand) -> Call:
    a.store.evaluate([_begin_rooms(a, b)])
    stored = (b"cursor", b"0-0", b"begun", b"1")
    return room_calls.read_call(SHAPE.keys, 0, "p", b"0-0", b"e", stored=stored, finished=b"e", page=b"0")


def _room_records(a: Hand, b: Hand) -> Call:
    _begin_rooms(a, b)
    return room_calls.records_call(SHAPE.keys, 0, [b"u", b"w"])


def _look_at_rooms(a: Hand, b: Hand) -> Call:
    a.store.evaluate([_project(a, b)])
    return occupancy_call(SHAPE.keys, 0, ["lobby", "game", "new", "nobody"], 1)


# Timers of each kind. Nothing is due later than now, because the clock stands.

LEASING: Final = Leasing(lease_s=30.0, attempts_max=2, backoff_s=1.0)
TIMER: Final = SHAPE.keys.timer("t")
TIMERS: Final[dict[str, Callable[[Scripting], SharedTimer]]] = {
    "queue": lambda scripting: DelayQueue(scripting, TIMER, LEASING),
    "ring": lambda scripting: RingTimer(scripting, TIMER, LEASING, slots=60, tick_s=1.0),
    "expiry": lambda scripting: ExpiryTimer(scripting, TIMER, LEASING),
}
Use = Callable[[SharedTimer, Scripting], Call]
"""Prepares a timer, and returns the call to stop."""


def _due_now(timer: SharedTimer, *ids: str) -> list[Any]:
    timer.schedule_many(Event(each, 0.0, b"x") for each in ids)
    return timer._claim_due(100)[0]


def _schedule(timer: SharedTimer, scripting: Scripting) -> Call:
    timer.schedule(Event("a", 60.0))
    events = [Event(each, delay_s, b"x") for each, delay_s in (("a", 1.0), ("b", 0.0), ("c", 90.0))]
    return caught(scripting, lambda: timer.schedule_many(events))


def _refused(timer: SharedTimer, scripting: Scripting) -> Call:
    timer.schedule(Event("a", 60.0))
    with mock.patch.object(timer, "_events_max", 1):
        return caught(scripting, lambda: timer.schedule(Event("b", 60.0)))


def _cancel(timer: SharedTimer, scripting: Scripting) -> Call:
    timer.schedule(Event("a", 60.0))
    return caught(scripting, lambda: timer.cancel("a"))


def _reschedule(timer: SharedTimer, scripting: Scripting) -> Call:
    timer.schedule_many([Event("a", 60.0), Event("b", 90.0)])
    return caught(scripting, lambda: timer.reschedule_many(["a", "b", "c"], 5.0))


def _due(timer: SharedTimer, scripting: Scripting) -> Call:
    """A call of `due` that finds new events, one given back, one whose lease is over, and a dead one."""
    first, again = _due_now(timer, "given back", "lapsed")
    timer.give_back([first])
    _let_lease_end(scripting, again.id)
    (worn,) = _due_now(timer, "worn out")[-1:]
    _let_lease_end(scripting, worn.id)
    for due in timer._claim_due(100)[0]:
        if due.id == "worn out":
            _let_lease_end(scripting, due.id)
        else:
            timer.give_back([due])
    timer.schedule_many([Event("new", 0.0, b"x"), Event("later", 60.0)])
    return caught(scripting, lambda: timer._claim_due(100))


def _let_lease_end(scripting: Scripting, event_id: str) -> None:
    scripting.commands(f"{TIMER}:leased", [("ZADD", f"{TIMER}:leased", 0, event_id)])


def _lost_index(timer: SharedTimer, scripting: Scripting) -> Call:
    timer.schedule_many([Event("a", 0.0), Event("b", 60.0)])
    scripting.commands(f"{TIMER}:due", [("DEL", f"{TIMER}:due")])
    return caught(scripting, lambda: timer._claim_due(100))


def _lost_slot(timer: SharedTimer, scripting: Scripting) -> Call:
    timer.schedule(Event("a", 60.0))
    scripting.commands(f"{TIMER}:slot:0", [("DEL", *(f"{TIMER}:slot:{slot}" for slot in range(60)))])
    scripting.commands(f"{TIMER}:ring", [("HINCRBY", f"{TIMER}:ring", "hand", -5)])
    return caught(scripting, lambda: timer._claim_due(100))


def _lost_hand(timer: SharedTimer, scripting: Scripting) -> Call:
    timer.schedule_many([Event("a", 0.0), Event("b", 60.0)])
    scripting.commands(f"{TIMER}:ring", [("DEL", f"{TIMER}:ring")])
    return caught(scripting, lambda: timer._claim_due(100))


def _notified(timer: SharedTimer, scripting: Scripting) -> Call:
    timer.schedule_many([Event("a", 0.0), Event("b", 0.0), Event("c", 60.0)])
    assert isinstance(timer, ExpiryTimer)
    return caught(scripting, lambda: timer._claim(["a", "b", "c"]))


def _done(timer: SharedTimer, scripting: Scripting) -> Call:
    dues = _due_now(timer, "a", "b", "c")
    return caught(scripting, lambda: timer.done(dues[:2]))


def _extend(timer: SharedTimer, scripting: Scripting) -> Call:
    dues = _due_now(timer, "a", "b")
    _let_lease_end(scripting, "a")
    return caught(scripting, lambda: timer.extend(dues))


def _give_back(timer: SharedTimer, scripting: Scripting) -> Call:
    dues = _due_now(timer, "a", "b", "c")
    return caught(scripting, lambda: timer.give_back(dues[:2]))


def _retry(timer: SharedTimer, scripting: Scripting) -> Call:
    (due,) = _due_now(timer, "a")
    return caught(scripting, lambda: timer.retry(due, 2.0))


def _last_retry(timer: SharedTimer, scripting: Scripting) -> Call:
    dues = _due_now(timer, "a")
    timer.retry(dues[0], 0.0)
    (due,) = timer._claim_due(100)[0]
    return caught(scripting, lambda: timer.retry(due, 2.0))


def _dead_letters(timer: SharedTimer, scripting: Scripting) -> None:
    _due_now(timer, "a", "b", "c")
    with mock.patch.object(timer, "leasing", Leasing(attempts_max=1)):
        for event_id in "abc":
            _let_lease_end(scripting, event_id)
        timer._claim_due(100)


def _requeue(timer: SharedTimer, scripting: Scripting) -> Call:
    _dead_letters(timer, scripting)
    return caught(scripting, lambda: timer.requeue(["a", "b"], 5.0))


def _purge(timer: SharedTimer, scripting: Scripting) -> Call:
    _dead_letters(timer, scripting)
    return caught(scripting, lambda: timer.purge(["a", "b"]))


def _dead(timer: SharedTimer, scripting: Scripting) -> Call:
    _dead_letters(timer, scripting)
    return caught(scripting, timer.dead)


def _state(timer: SharedTimer, scripting: Scripting) -> Call:
    timer.schedule(Event("a", 60.0))
    return caught(scripting, timer.state)


def on_timer(kind: str, use: Use) -> Callable[[Hand, Hand], Call]:
    def act(a: Hand, _: Hand) -> Call:
        timer = TIMERS[kind](a.store)
        timer._claim_base = f"{TIMER}:claim:caller"  # a random name otherwise
        return use(timer, a.store)

    return act


USES: Final[dict[str, Use]] = {
    **{"schedule": _schedule, "schedule: full": _refused, "cancel": _cancel, "reschedule": _reschedule},
    **{"due": _due, "done": _done, "extend": _extend, "give_back": _give_back},
    **{"retry": _retry, "retry: the last": _last_retry, "requeue": _requeue, "purge": _purge},
    **{"dead": _dead, "state": _state},
}


# The wheel in Redis


def on_wheel(
    use: Callable[[RedisWheel], object], *, forward: bool = False, lost: str = "", behind: int = 3
) -> Callable[[Hand, Hand], Call]:
    """Return a scene with two users on the wheel; if `forward`, now is their tick, after the hand."""

    def act(a: Hand, _: Hand) -> Call:
        with closing(RedisWheel(a.store.url, "web", idle_timeout_s=60.0, tick_s=1.0)) as wheel:
            wheel.touch_many(["u", "w"])
            base = f"{wheel.prefix}:{{0}}"
            if forward:
                at, now = 4_100_000_060, 4_100_000_000
                moves = [("RENAME", f"{base}:slot:{at}", f"{base}:slot:{now}")]
                users = [("HSET", f"{base}:users", uid, f"{now} {now}000 1-0") for uid in ("u", "w")]
                hand = ("HSET", f"{base}:wheel", "hand", str(now - behind))
                a.store.commands(base, [*moves, *users, hand])
            if lost:
                a.store.commands(base, [("DEL", f"{base}:{lost}")])
            return caught(wheel._scripting, lambda: use(wheel))

    return act


SCENES: Final = (
    Scene("follow-ups: run", _run),
    Scene("follow-ups: add", _add_followup),
    Scene("follow-ups: cancel", _cancel_followups),
    Scene("follow-ups: reindex", _reindex_followups),
    Scene("follow-ups: recount", _recount_followups),
    Scene("rooms: project", _project),
    Scene("rooms: begin", _begin_rooms),
    Scene("rooms: reset", _reset_rooms),
    Scene("rooms: read", _read_rooms),
    Scene("rooms: records", _room_records),
    Scene("rooms: look", _look_at_rooms),
    Scene("apply", _apply),
    Scene("apply: ends", _apply_ends),
    Scene("apply: opening", _open),
    Scene("retire", _retire),
    Scene("sweep", _sweep),
    Scene("fence", _fence),
    Scene("compare", _compare),
    Scene("forget", _forget),
    Scene("kick", _kick),
    Scene("reindex", _reindex),
    Scene("bans: lift", _bans),
    Scene("bans: add", _bans_added),
    Scene("roster", _rosters),
    Scene("deliver", _deliver, is_repeated=False),
    Scene("probe", _probe),
    Scene("types", _types),
    Scene("lease", _lease),
    Scene("claim", _claim),
    Scene("claim: removal", _claim_removal),
    *(Scene(f"{kind}: {name}", on_timer(kind, use)) for kind in TIMERS for name, use in USES.items()),
    Scene("queue: a lost index", on_timer("queue", _lost_index)),
    Scene("ring: a lost slot", on_timer("ring", _lost_slot)),
    Scene("ring: a lost hand", on_timer("ring", _lost_hand)),
    Scene("expiry: claim", on_timer("expiry", _notified)),
    Scene("wheel: touch", on_wheel(lambda wheel: wheel.touch_many(["u", "x", "y"]))),
    Scene("wheel: touch after some time", on_wheel(lambda wheel: wheel.touch_many(["u", "x"]), forward=True)),
    Scene("wheel: touch without a hand", on_wheel(lambda wheel: wheel.touch_many(["u", "x"]), lost="wheel")),
    Scene("wheel: forget", on_wheel(lambda wheel: wheel.forget_many(["u", "w", "x"]))),
    Scene("wheel: expire", on_wheel(lambda wheel: wheel.due(), forward=True)),
    Scene("wheel: expire without a hand", on_wheel(lambda wheel: wheel.due(), forward=True, lost="wheel")),
    Scene(
        "wheel: expire without a slot",
        # With several slots left a stop between them ends the users earlier: the clock stands.
        on_wheel(lambda wheel: wheel.due(), forward=True, lost="slot:4100000000", behind=1),
    ),
)


def _forget_texts() -> None:
    script_runner.source.cache_clear()
    script_runner.digest.cache_clear()


@pytest.fixture
def standing_clock() -> Iterator[None]:
    texts = {name: text.replace("redis.call('TIME')", CLOCK) for name, text in script_runner._TEXTS.items()}
    with mock.patch.dict(script_runner._TEXTS, texts):
        _forget_texts()
        yield
    _forget_texts()


def all_scripts() -> set[str]:
    """Return the names of all scripts that can be called: those that are no part of others."""
    names = set(script_runner._TEXTS)
    return names - {part for name in names for part in script_runner.parts_before(name)}


Said = tuple[bytes, Any]  # channel and message


class Listener:
    """Hears everything that is published on a server."""

    def __init__(self, server: Server) -> None:
        client: Any = server.client
        self._client, self._channels = client, client.pubsub()
        self._channels.psubscribe("*")

    def heard(self) -> list[Said]:
        """Return what was published since the last call."""
        self._client.publish(END, "")
        heard: list[Said] = []
        while (message := self._channels.get_message(timeout=10.0))["channel"] != END.encode():
            if message["type"] == "pmessage":
                heard.append((message["channel"], message["data"]))
        return heard

    def close(self) -> None:
        self._channels.close()


@dataclass(frozen=True)
class Ran:
    """A run of a script: what it returned (None: an error) and published, and whether it was stopped."""

    reply: Any
    was_stopped: bool
    published: list[Said]


def run(server: Server, listener: Listener, call: Call, stop: int) -> Ran:
    """Run a call, stopped before its `stop`-th command."""
    text = STOPS % stop + script_runner.source(call.script)
    client: Any = server.client
    listener.heard()
    reply = None
    try:
        reply = client.eval(text, len(call.keys), *call.keys, *call.arguments)
    except ResponseError as error:
        if "stopped" not in str(error):
            raise
    heard = listener.heard()
    published = [each for each in heard if each[0] != STOPPED.encode()]
    return Ran(reply, len(published) < len(heard), published)


def facts_said(published: Sequence[Said]) -> set[tuple[bytes, Any]]:
    """Return what was published without the numbers that rise with each call."""
    found = set()
    for channel, message in published:
        try:
            fields = json.loads(message)
        except ValueError:
            found.add((channel, message))
        else:
            found.add((channel, json.dumps(fields | {"n": 0}, sort_keys=True)))
    return found


def facts_of(fields: dict[bytes, bytes]) -> dict[bytes, Any]:
    """Return a hash without the numbers that rise with each call: of notices, and of the table of bans."""
    facts: dict[bytes, Any] = {
        name: value for name, value in fields.items() if name not in {b"inbox_n", b" version"}
    }
    if b"inbox" in facts:
        notices = [json.loads(each) | {"n": 0} for each in map(json.dumps, json.loads(facts[b"inbox"]))]
        facts[b"inbox"] = {json.dumps(each, sort_keys=True) for each in notices}
    return facts


def contents(server: Server) -> dict[bytes, Any]:
    """Return all keys with their values, and whether they expire."""
    client: Any = server.client
    readers: dict[bytes, Any] = {
        b"hash": lambda key: facts_of(client.hgetall(key)),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"string": client.get,
    }
    readers[b"stream"] = lambda key: [
        (None if key == SHAPE.keys.followups(0).encode() else entry, fields)  # Redis gives these their ids
        for entry, fields in client.xrange(key)
    ]
    return {key: (readers[client.type(key)](key), client.pttl(key) > 0) for key in client.keys("*")}


def prepared(server: Server, store: RedisStore, scene: Scene) -> Call:
    server.client.flushall()
    a, b = Hand(store, "a"), Hand(store, "b")
    a.open()
    b.open()
    step = scene.act(a, b)
    return step if isinstance(step, Call) else SHAPE.call(step)


def settle(server: Server, listener: Listener, call: Call) -> list[Said]:
    """Repeat a call until it has nothing more to do: what a run has planned, another one delivers.

    Return what it has published.
    """
    published: list[Said] = []
    for _ in range(3):
        ran = run(server, listener, call, 0)
        assert ran.reply is not None
        published += ran.published
    return published


def is_true_of(ran: Ran) -> bool:
    """Whether the answer about messages says what was sent: a failed call, nothing."""
    if ran.reply is None:
        return ran.published == []
    sent = dict.fromkeys(MESSAGES, 0)
    for _, packed in ran.published:
        flat = msgpack.unpackb(packed, raw=True)
        for devices, frame in zip(flat[1::3], flat[2::3], strict=True):
            sent[frame] += len(devices)
    return list(msgpack.unpackb(ran.reply[0])[::2]) == [*sent.values()]


def tried(server: Server, listener: Listener, scene: Scene, tried_scripts: set[str]) -> tuple[int, list[str]]:
    """Try every place to stop in; return their number, and what did not hold."""
    store = RedisStore(server.url, SHAPE)
    broken: list[str] = []
    whole = prepared(server, store, scene)
    tried_scripts.add(whole.script)
    before = contents(server)
    said = facts_said(settle(server, listener, whole))
    after = contents(server)
    for stop in range(1, COMMANDS_MAX):
        call = prepared(server, store, scene)
        ran = run(server, listener, call, stop)
        left = contents(server)
        nothing = left == before and not ran.published
        if scene.is_repeated:
            if not ran.was_stopped:
                break
            published = [*ran.published, *settle(server, listener, call)]
            held = contents(server) == after and facts_said(published) == said
        else:
            held = (
                is_true_of(ran) and left == before and (ran.was_stopped or facts_said(ran.published) == said)
            )
        print(f"{scene.name}, command {stop}: {'nothing written' if nothing else 'completed'}, held {held}")
        if not held:
            broken.append(f"{scene.name}, command {stop}")
        if not ran.was_stopped:
            break
    store.close()
    return stop - 1, broken


def tried_all(binary: str) -> list[str]:
    cells = 0
    broken: list[str] = []
    scripts: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        server = Server(binary, Path(folder))
        listener = Listener(server)
        try:
            for scene in SCENES:
                count, failed = tried(server, listener, scene, scripts)
                cells, broken = cells + count, broken + failed
        finally:
            listener.close()
            server.close()
    print(f"{cells} cells, {cells - len(broken)} held")
    return broken + [f"{name}: no scene" for name in all_scripts() - scripts]


@pytest.mark.usefixtures("standing_clock")
def test_a_stopped_script_is_completed_once() -> None:
    assert tried_all(redis_binary()) == []


@pytest.mark.nightly
@pytest.mark.usefixtures("standing_clock")
def test_a_stopped_script_is_completed_once_on_redis_7() -> None:
    assert tried_all("redis-server") == []
