"""What lies in Redis may be damaged: every key that is written, damaged in each way while servers run.

Afterwards a server is killed and restarted. In each cell the promises hold: the events of a user alternate,
the users online in Redis are those with a live session, and no server fails or writes events without end.
Where servers cannot repair a value, their log names the key and the command that does.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import pytest

from loadtest.servers import LocalRedis, PresenceServer, wait_for
from presence.common.errors import StoreError
from presence.followups import FollowUps
from presence.ops.ban import ban
from presence.reader import PresenceReader
from presence.store.keys import Keys
from presence.store.redis_client import RedisError
from presence.store.script_runner import Scripting
from presence.timers.interface import Event, TimerError
from presence.timers.kinds import DelayQueue, RingTimer
from presence.timers.redis_wheel import RedisWheel
from tests.support.preloaded import PreloadedServer
from tests.system.matrices.people import People, visit

KEYS: Final = Keys()
FLAGS: Final = ("--idle-timeout", "1.5", "--tick", "0.1", "--disconnect-grace", "0.2", "--lease", "1")
# The walks take seconds here, not minutes.
PROGRAM: Final = (
    "-c",
    "from presence.cluster import sweeper; from presence.outbox import reconciler; "
    "from presence.cli.main import main; "
    "from presence.server import ban_enforcer; "
    "reconciler.COMPARE_INTERVAL_S = sweeper.REINDEX_INTERVAL_S = ban_enforcer.REFRESH_INTERVAL_S = 0.4; "
    "raise SystemExit(main())",
)
RULES: Final = '[[followups]]\nname = "mail"\nafter = 3600\n'
HERE: Final = ("ann", "bob")  # at the server that stays
THERE: Final = ("cyd", "dan", "eve")  # at the server that is killed
HEAL_S: Final = 8.0  # from a damage until the servers write again
SWEEP_S: Final = 20.0  # until the users of a dead node are offline: twice lease + T, if its index was lost
QUIET_S: Final = 0.7
TOMB_UNTIL_MS: Final = 2**42  # in far future
MAX_ENTRIES: Final = 4  # of one type and user in a cell; more are a retry that writes events


def _numbers(text: bytes) -> bytes:
    """Return a text in which a number is too large for every reader."""
    return re.sub(rb"\b\d+\b", b"1e999", text, count=0) or b"1e999"


def _is_record(text: bytes) -> bool:
    try:
        return bool(json.loads(text)["sessions"])
    except (ValueError, TypeError, LookupError):
        return False


HashDamage = Callable[[bytes], bytes]
VALUES: Final[dict[str, HashDamage]] = {
    "emptied": lambda _value: b"",
    "truncated": lambda value: value[: len(value) // 2],
    "number too large": _numbers,
    "foreign bytes": lambda _value: b"\xff\xfe\x00\xc1",
}
LOST: Final = "the end of a period whose beginning is lost"
DAMAGES: Final = ("deleted", "another type", *VALUES)


@dataclass(frozen=True)
class Kind:
    """A key that is written.

    Attributes:
        name: below the prefix; NODE is the id of the server that is killed.
        type: of its value.
        loses: whether servers cannot know what was lost with it, and register users again.
        occurs: whether it is there while the servers of this matrix run.
    """

    name: str
    type: str
    loses: bool = False
    occurs: bool = True


KINDS: Final = (
    Kind("{0}:events", "stream", loses=True),
    Kind("{0}:online", "hash", loses=True),
    Kind("{0}:seen", "zset"),
    Kind("{0}:left", "hash"),
    Kind("{0}:node:NODE", "hash"),
    Kind("{0}:node:NODE:sessions", "hash"),
    Kind("{0}:node:NODE:pending", "hash", occurs=False),
    Kind("{0}:traces", "hash"),
    Kind("{0}:meta", "hash"),
    Kind("{0}:holding", "set", occurs=False),
    Kind("nodes", "zset"),
    Kind("{presence:nodes}:leases", "hash"),
    Kind("{presence:nodes}:stats", "hash"),
    Kind("{presence:nodes}:tombs", "zset"),
    Kind("meta", "hash"),
    Kind("bans", "hash"),
    Kind("{0}:followup:work", "hash"),
    Kind("{0}:followup:due", "zset"),
    Kind("{0}:followup:of", "hash"),
    Kind("{0}:followup:counts", "hash"),
    Kind("{0}:followup:state", "hash"),
    Kind("{0}:followups", "stream", occurs=False),
    Kind("timer:{jobs}:work", "hash"),
    Kind("timer:{jobs}:due", "zset"),
    Kind("timer:{jobs}:leased", "zset"),
    Kind("timer:{jobs}:dead", "zset", occurs=False),
    Kind("timer:{jobs}:counts", "hash"),
    Kind("timer:{rings}:ring", "hash"),
    Kind("timer:{rings}:slot:N", "zset"),
    Kind("timer:web:{0}:users", "hash"),
    Kind("timer:web:{0}:wheel", "hash"),
    Kind("timer:web:{0}:slot:N", "set"),
    Kind("timer:web:{0}:events", "stream"),
    Kind("timer:web:meta", "hash"),
)
# Written by consumers, and read by nothing else than the same consumers.
OF_CONSUMERS: Final = re.compile(
    r"\{0\}:(dead|errors:.*|webhooks:.*|answers:.*|followups:.*)|webhooks:.*|timer:\{(jobs|rings)\}:claim:.*"
)
# Of the ring, besides those that a queue has not: the same scripts use them in the same way.
OF_QUEUES: Final = re.compile(r"timer:\{rings\}:(work|leased|dead|counts)")


@dataclass
class Stage:
    """Two servers on one Redis, with clients, a follow-up, a ban, a queue and a wheel."""

    folder: Path
    last: dict[str, str] = field(default_factory=dict)  # user -> type of the last entry
    read_up_to: str = "0-0"
    round: int = 0

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        enter = self._stack.enter_context
        self.redis = enter(LocalRedis())
        self.client = self.redis.client
        rules = self.folder / "rules.toml"
        rules.write_text(RULES)
        self._flags = ("--redis", self.redis.url, "--config", str(rules), *FLAGS)
        with ThreadPoolExecutor() as threads:
            self.stays, self.dies = threads.map(self._server, (0, 0))
        self.people = enter(People())
        self.people.come(self.stays.address, *HERE)
        self.people.come(self.dies.address, *THERE)
        self.scripting = enter(closing(Scripting(self.redis.url)))
        self.jobs = DelayQueue(self.scripting, KEYS.timer("jobs"))
        self.ring = RingTimer(self.scripting, KEYS.timer("rings"), slots=60, tick_s=0.1)
        self.wheel = enter(closing(self.new_wheel()))
        assert wait_for(lambda: self.online() == {*HERE, *THERE}, HEAL_S)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _server(self, port: int = 0) -> PresenceServer:
        return self._stack.enter_context(PreloadedServer(*self._flags, port=port, program=PROGRAM))

    def online(self) -> set[str]:
        """Return the users with a readable record in Redis."""
        key = KEYS.online(0)
        rows = self.client.hgetall(key) if self.client.type(key) == b"hash" else {}
        return {uid.decode("utf-8", "replace") for uid, text in rows.items() if _is_record(text)}

    def node_of(self, server: PresenceServer) -> str:
        """Return the present id of a server's node."""
        ids = [line["node"] for line in server.lines if line.get("node")]
        return str(ids[-1])

    def fill(self) -> None:
        """Write every key that can be written now."""
        for uid in ("visitor", "other"):
            visit(self.stays.address, uid)
            visit(self.dies.address, uid)
        with FollowUps(self.redis.url) as followups:
            followups.add("ann", after=3600, name="armed", key="1")
            followups.add("visitor", after=3600, name="cart", key="1")
        self.round += 1
        self.jobs.schedule_many(Event(f"{self.round}-{n}", 0.0 if n < 3 else 60.0, b"x") for n in range(6))
        self.jobs.done(self.jobs.due(1))
        self.jobs.due(1)
        self.ring.schedule_many(Event(f"{self.round}-{n}", 60.0, b"x") for n in range(3))
        self.wheel.touch_many(["x", "y", "z"])
        self.ban()
        self.client.zadd(KEYS.lease_keys[3], {"swept": TOMB_UNTIL_MS})

    def use(self) -> list[str]:
        """Use bans, follow-ups, the queue, the ring and the wheel; return the errors."""
        errors = []
        for call in (
            self.jobs.due,
            self.turn_ring,
            self.wheel.due,
            self.sit,
            self.plan,
            self.ban,
        ):
            try:
                call()
            except (StoreError, RedisError, TimerError, ValueError, TypeError) as error:
                errors.append(f"{type(error).__name__}: {error}")
        return errors

    def turn_ring(self) -> None:
        """Handle due events of the ring, and schedule one for each slot, so that the damaged one is used."""
        self.ring.done(self.ring.due())
        now = time.time_ns()
        self.ring.schedule_many(Event(f"{now}-{n}", 0.1 * n) for n in range(60))

    def ban(self) -> None:
        with PresenceReader(self.redis.url) as reader:
            ban(self.redis.url, reader, ["zed"], by="matrix", wait_s=0)

    def new_wheel(self) -> RedisWheel:
        return RedisWheel(self.redis.url, "web", idle_timeout_s=0.5, tick_s=0.1)

    def sit(self) -> None:
        """Put a new user on the wheel, as a process that has just started does."""
        with closing(self.new_wheel()) as wheel:
            wheel.touch(f"new-{time.time_ns()}")

    def plan(self) -> None:
        """Plan a follow-up and cancel it."""
        with FollowUps(self.redis.url) as followups:
            followups.cancel(followups.add("visitor", after=3600, name="once").id)
            followups.of("ann")
            followups.earliest()

    def known(self, key: str) -> bool:
        """Whether the matrix knows a key."""
        name = key.removeprefix("presence:")
        name = re.sub(r":node:[^:]+", ":node:NODE", name)
        name = re.sub(r":slot:\d+$", ":slot:N", name)
        return name in {each.name for each in KINDS} or bool(
            OF_CONSUMERS.fullmatch(name) or OF_QUEUES.fullmatch(name)
        )

    def unknown_keys(self) -> list[str]:
        keys: list[bytes] = list(self.client.scan_iter(count=1000))
        return [key.decode() for key in keys if not self.known(key.decode())]

    def key(self, kind: Kind) -> str:
        name = kind.name.replace("NODE", self.node_of(self.dies))
        if name.endswith(":N"):
            found = sorted(self.client.keys(f"presence:{name[:-1]}*".replace("{", "\\{")))
            return str(found[-1].decode()) if found else f"presence:{name[:-1]}1"
        return f"presence:{name}"

    def damage(self, key: str, kind: Kind, damage: str) -> None:
        """Damage a value as a hand, a wrong program or a broken restore may."""
        client = self.client
        if damage == "deleted":
            client.delete(key)
        elif damage == "another type":
            client.delete(key)
            client.set(key, "of another program")
        elif kind.type == "hash":
            new = {name: VALUES[damage](value) for name, value in client.hgetall(key).items()}
            more = {b"\xff": b"\xff"} if damage == "foreign bytes" else {}
            if new | more:
                client.hset(key, mapping=new | more)
        elif kind.type == "zset":
            self._damage_sorted_set(key, damage)
        elif kind.type == "set":
            members = sorted(client.smembers(key))
            if damage in {"emptied", "truncated"}:
                for each in members[: len(members) if damage == "emptied" else len(members) // 2]:
                    client.srem(key, each)
            client.sadd(key, b"\xff" if damage == "foreign bytes" else b"1e999")
        else:
            self._damage_stream(key, damage)

    def _damage_sorted_set(self, key: str, damage: str) -> None:
        client, members = self.client, self.client.zrange(key, 0, -1)
        if damage == "number too large":
            for each in members:
                client.zadd(key, {each: float("inf")})
        elif damage == "foreign bytes":
            client.zadd(key, {b"\xff\x00": -1})
        else:
            for each in members[: len(members) if damage == "emptied" else len(members) // 2]:
                client.zrem(key, each)
            if damage == "emptied":
                client.zadd(key, {b"": 0})

    def _damage_stream(self, key: str, damage: str) -> None:
        client = self.client
        if damage == "emptied":
            client.xtrim(key, maxlen=0, approximate=False)
        elif damage == "truncated":
            ids = [entry_id for entry_id, _ in client.xrevrange(key, count=max(1, client.xlen(key) // 2))]
            if ids:
                client.xdel(key, *ids)
        elif damage == "number too large":
            client.xadd(key, {"v": "1", "type": "foreign", "uid": "ann", "at_ms": "1e999", "code": "1e999"})
        else:
            client.xadd(key, {b"\xff": b"\xff\x00", b"type": b"\xff"})

    def entries(self) -> list[tuple[str, str, str]]:
        """Return type, uid and reason of the entries since the last call."""
        key = KEYS.events(0)
        if self.client.type(key) != b"stream":
            self.read_up_to = "0-0"
            return []
        rows = self.client.xrange(key, f"({self.read_up_to}" if self.read_up_to != "0-0" else "-")
        if rows:
            self.read_up_to = rows[-1][0].decode()
        found = [{name: value.decode("utf-8", "replace") for name, value in row.items()} for _, row in rows]
        return [
            (e[b"type"], e.get(b"uid", ""), LOST if e.get(b"since_id") == "0-0" else e.get(b"reason", ""))
            for e in found
            if b"type" in e
        ]

    def check_entries(self, kind: Kind, entries: list[tuple[str, str, str]]) -> list[str]:
        """Return what is wrong with the entries of a cell."""
        wrong = []
        for type, uid, reason in entries:
            if type not in {"online", "offline"}:
                continue
            if self.last.get(uid) == type and not (kind.loses and reason in {"returned", "node_down", LOST}):
                wrong.append(f"{type} of {uid} ({reason}) after another one")
            self.last[uid] = type
        counts = Counter((type, uid) for type, uid, _ in entries if uid not in {"visitor", "other"})
        return wrong + [f"{n} entries {each}" for each, n in counts.items() if n > MAX_ENTRIES]

    def named(self, key: str, errors: list[str]) -> bool:
        """Whether a log line or an error names the key and the command that repairs it."""
        lines = [str(line) for server in (self.stays, self.dies) for line in server.lines] + errors
        return any(f"redis-cli DEL {key}" in line for line in lines)

    def is_writing(self, uid: str) -> bool:
        """Whether both events of a visit are in Redis."""
        before = self.client.xlen(KEYS.events(0)) if self.client.type(KEYS.events(0)) == b"stream" else 0
        visit(self.stays.address, uid)
        time.sleep(0.2)
        is_stream = self.client.type(KEYS.events(0)) == b"stream"
        return is_stream and bool(self.client.xlen(KEYS.events(0)) >= before + 2)

    def run(self, kind: Kind, damage: str) -> list[str]:
        """Run a cell; return what did not hold."""
        self.fill()
        wrong = self.check_entries(kind, self.entries())
        known = len(self.stays.failures())
        if unknown := self.unknown_keys():
            wrong.append(f"keys that the matrix does not know: {unknown}")
        key = self.key(kind)
        if kind.occurs and not self.client.exists(key):
            wrong.append(f"{key} is not there")
        self.damage(key, kind, damage)
        if kind.loses:  # those who were online may be so without an entry, or come again with another
            self.last = {uid: type for uid, type in self.last.items() if type != "online"}
        is_writing = wait_for(lambda: self.is_writing("visitor"), HEAL_S / 2, poll_s=0.1)
        # Servers write lost metadata again when they next compare.
        errors = [] if wait_for(lambda: not self.use(), HEAL_S / 4, poll_s=0.1) else self.use()
        if not is_writing or errors or (kind.occurs and self.client.type(key) == b"string"):
            # The tick of a damaged slot may be yet to come.
            if not wait_for(
                lambda: self.named(key, errors) or self.named(key, self.use()), HEAL_S, poll_s=0.1
            ):
                wrong.append(f"no log line names {key} and its repair; writing {is_writing}, errors {errors}")
            self.client.delete(key)  # as the line says
            if not wait_for(lambda: self.is_writing("visitor") and not self.use(), HEAL_S, poll_s=0.1):
                wrong.append(f"after the repair: {self.use()}")
        time.sleep(QUIET_S)
        self.people.leave(*THERE)
        self.dies.process.kill()
        self.dies.process.wait()
        failures, port = self.dies.failures(), self.dies.address[1]
        with ThreadPoolExecutor() as threads:  # a start takes as long as a sweep
            start = threads.submit(self._server, port)
            if not wait_for(lambda: self.online() == {*HERE}, SWEEP_S):
                wrong.append(f"online after the sweep: {self.online()}")
        if (refusal := start.exception()) is None:
            self.dies = start.result()
        else:
            if key not in str(refusal):
                wrong.append(f"no start, and no word of {key}: {refusal}")
            self.client.delete(key)
            self.dies = self._server(port)
        self.people.come(self.dies.address, *THERE)
        if not wait_for(lambda: self.online() == {*HERE, *THERE}, HEAL_S):
            wrong.append(f"online after the restart: {self.online()}")
        time.sleep(QUIET_S)
        wrong += self.check_entries(kind, self.entries())
        time.sleep(QUIET_S)
        if more := self.entries():
            wrong.append(f"entries although nobody comes or goes: {more}")
        if wrong_now := [uid for uid in (*HERE, *THERE) if self.last.get(uid) != "online" and not kind.loses]:
            wrong.append(f"online without an entry: {wrong_now}")
        failures += self.stays.failures()[known:] + self.dies.failures()
        # One that was refused just before the repair finds nothing to repair, and names the key only.
        wrong += [each for each in failures if key not in each]
        if self.stays.process.poll() is not None:
            wrong.append("the server that stays has ended")
        if errors := self.use():
            wrong.append(f"queue or wheel: {errors}")
        if self.client.type(key) == b"string":  # none has used it
            self.client.delete(key)
        return wrong


SMALL: Final = (("{0}:node:NODE:sessions", "deleted"),)


def failed_cells(folder: Path, cells: list[tuple[Kind, str]]) -> list[str]:
    """Run cells on one stage, and on a new one after each that did not hold; print a line per cell."""
    failed: list[str] = []
    waiting = cells[::-1]
    begun = time.monotonic()
    while waiting:
        with Stage(folder) as stage:
            held = True
            while waiting and held:
                kind, damage = waiting.pop()
                wrong = stage.run(kind, damage)
                held = not wrong
                print(f"{kind.name}, {damage}: {wrong or 'held'}", flush=True)
                failed += [] if held else [f"{kind.name}, {damage}: {wrong}"]
    print(f"{len(cells)} cells, {len(cells) - len(failed)} held ({time.monotonic() - begun:.0f} s)")
    return failed


def test_some_damaged_values_are_survived(tmp_path: Path) -> None:
    by_name = {each.name: each for each in KINDS}
    assert failed_cells(tmp_path, [(by_name[name], damage) for name, damage in SMALL]) == []


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_damaged_value_is_survived(tmp_path: Path, kind: Kind) -> None:
    assert failed_cells(tmp_path, [(kind, damage) for damage in DAMAGES]) == []
