"""The Lua scripts of the store: their text, and how arguments and answers are packed."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

import msgpack

from presence.changes import Op
from presence.store.batches import (
    Batch,
    Counter,
    Displaced,
    Item,
    Opened,
    Opening,
    Probe,
    Reply,
    Retirement,
    Status,
    Superseded,
)
from presence.store.keys import Keys
from protocol.constants import Code

RETIRE_FIELDS: Final = 512  # looked at in one call: as much work as a batch

Answer = tuple[bytes, bytes]  # MessagePack, replication id


@cache
def source(name: str) -> str:
    """Return the text of a script, `apply`, `retire` or `probe`, with what they share before it."""
    folder = resources.files("presence.store") / "scripts"
    return "".join((folder / f"{part}.lua").read_text("utf-8") for part in ("prelude", name))


@dataclass(frozen=True, slots=True)
class Shape:
    """What each call tells the scripts besides its own arguments.

    Args:
        keys: how keys are called.
        maxlen: entries that a stream is capped to, roughly.
        seen_retention_ms: how long it is remembered when an offline user was last seen.
    """

    keys: Keys
    maxlen: int
    seen_retention_ms: int

    def key_names(self, shard: int, node: str) -> list[str]:
        """Return KEYS as all scripts take them."""
        keys = self.keys
        return [
            keys.events(shard),
            keys.online(shard),
            keys.seen(shard),
            keys.node(shard, node),
            keys.members(shard),
        ]

    def _common(self, shard: int, node: str, generation: int, replication_id: str) -> list[Any]:
        keys = self.keys
        return [
            node,
            generation,
            replication_id,
            keys.node(shard, ""),
            keys.online_channel,
            keys.offline_channel,
            keys.control_channel(""),
            self.maxlen,
            self.seen_retention_ms,
        ]

    def apply_arguments(self, batch: Batch) -> list[Any]:
        """Return ARGV of apply.lua."""
        node, generation, n = batch.counter.node, batch.counter.generation, batch.counter.n
        items, reasons = _packed_items(batch.items, batch.now)
        opening = _packed_opening(batch.opening) if batch.opening else b""
        common = self._common(batch.shard, node, generation, batch.replication_id)
        return [*common, n, items, opening, reasons]

    def retire_arguments(self, step: Retirement) -> list[Any]:
        """Return ARGV of retire.lua."""
        common = self._common(step.shard, step.counter.node, step.counter.generation, step.replication_id)
        return [*common, step.cursor, RETIRE_FIELDS, step.latest_ms]

    def probe_arguments(self, shard: int, node: str, inbox_read: int) -> list[Any]:
        """Return ARGV of probe.lua."""
        return [*self._common(shard, node, 0, ""), inbox_read]


def _packed_items(items: Iterable[Item], now: float) -> tuple[bytes, bytes]:
    """Return items and reasons as apply.lua takes them: flat, for making tables costs Lua much."""
    values: list[object] = []
    reasons: dict[int, str] = {}
    for (op, uid, device, session, code, at, at_ms, last_seen_ms, idle_timeout_ms), restores, _ in items:
        if code not in reasons:
            reasons[code] = Code(code).reason
        if op is Op.END:
            values += ("end", uid, device, session, str(code), str(at_ms), str(last_seen_ms), restores)
        else:
            age_ms = max(0, round((now - at) * 1000))
            values += (op.value, uid, device, session, str(code), str(at_ms), age_ms, idle_timeout_ms)
    texts = {str(code): reason for code, reason in reasons.items()}
    return msgpack.packb(values), msgpack.packb(texts)


def _packed_opening(opening: Opening) -> bytes:
    gap = opening.gap
    packed: bytes = msgpack.packb(
        {
            "dropped": gap.dropped if gap else 0,
            "from_ms": gap.from_ms if gap else 0,
            "to_ms": gap.to_ms if gap else 0,
            "floor": opening.floor,
            "before": opening.before,
        }
    )
    return packed


def _superseded(rows: list[list[str]]) -> tuple[Superseded, ...]:
    return tuple(Superseded(*row) for row in rows)


def read_reply(step: Batch | Retirement, answer: Answer) -> Reply:
    """Return what apply.lua or retire.lua answered to `step`."""
    reply = msgpack.unpackb(answer[0])
    opened = None
    if "previous" in reply and isinstance(step, Batch) and step.opening:
        generation, n, rows = reply["previous"]
        before = Counter(step.opening.before, generation, n)
        opened = Opened(before, _superseded(rows), frozenset(reply["others"]))
    return Reply(
        status=Status(reply["status"]),
        replication_id=answer[1].decode(),
        generation=reply.get("generation", 0),
        last_id=reply.get("last_id", ""),
        superseded=_superseded(reply.get("superseded", [])),
        opened=opened,
        cursor=reply.get("cursor", "0"),
    )


def read_probe(shard: int, node: str, answer: Answer) -> Probe:
    """Return what probe.lua answered."""
    reply = msgpack.unpackb(answer[0])
    return Probe(
        shard=shard,
        replication_id=answer[1].decode(),
        fenced=reply["fenced"],
        counter=Counter(node, reply["generation"], reply["n"]),
        last_id=reply["last_id"],
        others=frozenset(reply["others"]),
        inbox_n=reply["inbox_n"],
        inbox=tuple(read_displaced(text) for text in reply["inbox"]),
    )


def read_displaced(text: str | bytes) -> Displaced:
    """Return a displacement from its JSON, as inbox and control channel carry it."""
    entry = json.loads(text)
    return Displaced(entry["uid"], entry["device"], entry["session"], entry["by"], entry["return_allowed"])
