"""Nodes driven by tests, and readers of what they wrote to Redis."""

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import redis

from presence.core.changes import Change, Op
from presence.core.event_facts import LoginFacts
from presence.core.profiles import PLAIN, Profile
from presence.outbox.event_counts import TYPES
from presence.outbox.overflow import SkippedChanges
from presence.outbox.replies import Probe, Reply, ReplyStatus
from presence.outbox.steps import (
    NO_ENTRY_ID,
    Batch,
    Counter,
    Fencing,
    Item,
    Opening,
    Retirement,
    Step,
    Sweep,
)
from presence.protocol.constants import STATUSES, Status
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore

NOW_S = 1000.0  # monotonic; the send time of all batches here
NOW_MS = 1_700_000_000_000


def change(
    op: Op,
    uid: str,
    session: str,
    device: str = "",
    *,
    code: int | None = None,
    age_s: float = 0.0,
    at_ms: int = NOW_MS,
    last_seen_ms: int | None = None,
    profile: Profile = PLAIN,
    grace_ms: int = 0,
    privacy: str = "",
) -> Change:
    code = code or {Op.END: 100, Op.REGISTER: 2, Op.RECLAIM: 2, Op.UPDATE: 5}.get(op, 1)
    seen = at_ms if last_seen_ms is None else last_seen_ms
    at_s = NOW_S - age_s
    return Change(op, uid, device, session, code, at_s, at_ms, seen, 30_000, profile, grace_ms, privacy)


login, end, register, reclaim, update, hold = (
    partial(change, op) for op in (Op.LOGIN, Op.END, Op.REGISTER, Op.RECLAIM, Op.UPDATE, Op.PENDING_LOGIN)
)
"""Changes of a session: ``login(uid, session, device="", …)``; `hold` is a pending login."""


class Hand:
    """A node that sends what the test says, in shard 0."""

    def __init__(self, store: RedisStore, node: str) -> None:
        self.store = store
        self.node = node
        self.generation = 0
        self.n = 0
        self.replication_id = ""

    def open(
        self,
        generation: int = 1,
        *,
        floor: str = NO_ENTRY_ID,
        gap: SkippedChanges | None = None,
        before: str | None = None,
    ) -> Reply:
        opening = Opening(before or self.node, floor, gap)
        reply = self.send(Batch(0, Counter(self.node, generation, 1), "", (), NOW_S, opening=opening))
        if reply.status is ReplyStatus.OK:
            self.generation, self.n, self.replication_id = generation, 1, reply.replication_id
        return reply

    def batch(self, changes: Iterable[Change], n: int, *, restores: bool = False) -> Batch:
        items = tuple(Item(c, restores=restores) for c in changes)
        return Batch(0, Counter(self.node, self.generation, n), self.replication_id, items, NOW_S)

    def send(self, batch: Step) -> Reply:
        (reply,) = self.store.apply([batch])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def apply(self, *changes: Change, restores: bool = False) -> Reply:
        reply = self.send(self.batch(changes, self.n + 1, restores=restores))
        if reply.status is ReplyStatus.OK:
            self.n += 1
        return reply

    def retire(self, cursor: str = "0", latest_ms: int = 0) -> Reply:
        counter = Counter(self.node, self.generation, self.n)
        return self.send(Retirement(0, counter, self.replication_id, cursor, latest_ms))

    def fence(self, other: str) -> Reply:
        return self.send(Fencing(0, Counter(self.node, self.generation, self.n), self.replication_id, other))

    def sweep(self, other: str, *, cursor: str = "0", waited_ms: int = 10**9, latest_ms: int = 0) -> Reply:
        counter = Counter(self.node, self.generation, self.n)
        return self.send(Sweep(0, counter, self.replication_id, other, cursor, waited_ms, latest_ms))


def probed(store: RedisStore, node: str, inbox_read: int = 0) -> Probe:
    """Return the probe of shard 0 by a node."""
    probe = store.probe(node, {0: inbox_read})[0]
    assert isinstance(probe, Probe), probe
    return probe


Event = dict[str, str]


def events(client: "redis.Redis", shard: int = 0) -> list[Event]:
    """Return the stream's entries, oldest first, with their ids."""
    entries: Any = client.xrange(Keys(shards=16).events(shard))
    return [
        {"id": i.decode(), **{k.decode(): v.decode() for k, v in fields.items()}} for i, fields in entries
    ]


def brief_events(client: "redis.Redis", shard: int = 0) -> list[tuple[str, str, str]]:
    """Return the stream as (type, uid, reason)."""
    return [(e["type"], e["uid"], e["reason"]) for e in events(client, shard)]


def written(stream: Iterable[Event]) -> dict[str, dict[str, int]]:
    """Return the counts of a stream, in the form of `Transitions.report`."""
    counts: dict[str, dict[str, int]] = {type: {} for type in TYPES}
    for event in stream:
        reasons, reason = counts[event["type"]], event.get("reason", event["type"])
        reasons[reason] = reasons.get(reason, 0) + 1
    return counts


def record(client: "redis.Redis", uid: str, shard: int = 0) -> Any:
    text: Any = client.hget(Keys(shards=16).online(shard), uid)
    return None if text is None else json.loads(text)


def online_sessions(client: "redis.Redis", shard: int = 0) -> set[tuple[str, str, str]]:
    """Return every (uid, device, session) on record."""
    raw: Any = client.hgetall(Keys(shards=16).online(shard))
    return {
        (uid.decode(), device, entry["session"])
        for uid, text in raw.items()
        for device, entry in json.loads(text)["sessions"].items()
    }


def owned(client: "redis.Redis", node: str, shard: int = 0) -> set[tuple[str, str, str]]:
    """Return every (uid, device, session) that a node owns."""
    raw: Any = client.hgetall(Keys(shards=16).sessions(shard, node))
    return {(*field.decode().split(" "), value.decode().split(" ")[1]) for field, value in raw.items()}


def check_alternation(stream: Iterable[Event]) -> set[str]:
    """Assert that each user's events alternate and each offline names its online; return the users online.

    Events that change a user's state have to belong to the current online period.
    """
    last: dict[str, Event] = {}
    for event in stream:
        if event["type"] == "gap":
            continue
        if event["type"] in {"away", "update", "device", "rooms"}:
            present = last[event["uid"]]
            assert (present["type"], present["id"]) == ("online", event["since_id"]), (present, event)
            continue
        before = last.get(event["uid"])
        if event["type"] == "online":
            assert before is None or before["type"] == "offline", (before, event)
            assert event["since_ms"] == event["at_ms"]
        else:
            assert before is not None, event
            assert before["type"] == "online", (before, event)
            assert event["since_id"] == before["id"], (before, event)
            assert event["since_ms"] == before["since_ms"], (before, event)
        last[event["uid"]] = event
    return {uid for uid, event in last.items() if event["type"] == "online"}


def write_former_data(client: "redis.Redis") -> None:
    """Write two shards of data that servers of an earlier release left behind when they were killed.

    It has no reasons, statuses other than away, `private` and classes of devices: they came later.
    """
    for line in (Path(__file__).parent / "data" / "version_2.jsonl").read_text("ascii").splitlines():
        command, *words = json.loads(line)
        client.execute_command(command, *(word.encode("latin-1") for word in words))  # type: ignore[no-untyped-call]


def listen(client: "redis.Redis", *channels: str) -> Any:
    """Return a pub/sub listener with confirmed subscriptions."""
    listener = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]  # redis-py's
    listener.subscribe(*channels)
    for _ in channels:
        listener.get_message(timeout=1)
    return listener


def a_change(text: str) -> Change:
    """Parse ``login u s1 phone`` with options.

    ``age`` in s; ``at``, ``seen`` in ms after NOW_MS; ``in=hall,lobby``: its rooms.
    """
    op, uid, session, *more = text.split()
    device = next((word for word in more if "=" not in word), "")
    options = dict(word.split("=") for word in more if "=" in word)
    shown = options.get("as", "").split(",")
    status: Status = next((each for each in STATUSES if each in shown), "online")
    meta = next((f'"{word}"' for word in shown if word not in {"", *STATUSES}), "")
    private = f'"{options["private"]}"' if "private" in options else ""
    at_ms = NOW_MS + int(options.get("at", 0))
    return change(
        Op(op),
        uid,
        session,
        device,
        code=int(options.get("code", 0)) or None,
        age_s=float(options.get("age", 0)),
        at_ms=at_ms,
        last_seen_ms=NOW_MS + int(options["seen"]) if "seen" in options else at_ms,
        profile=Profile(
            *(status, meta, private, LoginFacts(device_class=options.get("class", ""))),
            privacy=options.get("knows", ""),
            rooms=options.get("in", "").replace(",", " "),
        ),
        grace_ms=int(options.get("grace", 0)),
        privacy=options.get("hides", ""),
    )


def play(hands: dict[str, Hand], step: str) -> Reply:
    """Apply one step of a row; ``a login u s1 & end u s1`` is a batch of `a`."""
    name, verb, *rest = step.split()
    match verb, *rest:
        case ["anew"]:
            return hands[name].open(2)
        case ["retires", *latest]:
            return hands[name].retire(latest_ms=sum(NOW_MS + int(ms) for ms in latest))
        case ["is", "fenced"]:
            return hands["c"].fence(name)
        case ["is", "swept"]:
            return hands["c"].sweep(name)
        case ["becomes", other]:
            return hands[other].open(2, before=name)
    changes = step.partition(" ")[2].removeprefix("restoring ").split(" & ")
    return hands[name].apply(*map(a_change, changes), restores=verb == "restoring")


def rows(text: str) -> list[tuple[str, str, str]]:
    """Parse a table: each row has a name, then indented steps and the expected outcome.

    The outcome is the last line, or starts at the line that begins with ``->``. Lines that begin with ``…``
    continue the one before.
    """
    found: list[list[str]] = []
    for line in text.strip().splitlines():
        if line.startswith(" ") and found[-1][-1].startswith("->"):
            found[-1][-1] += f" {line.strip()}"
        elif line.strip().startswith("…"):
            found[-1][-1] += line.strip().removeprefix("…")
        elif line.startswith(" "):
            found[-1].append(line.strip())
        elif not line.startswith("#"):
            found.append([line])
    return [(name, " ".join(played), outcome) for name, *played, outcome in found]
