"""The calls of nodes on Redis, one server or a cluster: batches, probes, leases and messages, all by scripts.

Each object has connections of its own, see `Scripting`, and one caller.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import msgpack

from presence.cluster.lease_table import LeaseRow
from presence.common.errors import StoreError, StoreMismatch, StoreUnavailable
from presence.common.redis_url import redacted
from presence.messaging.message_bus import OutgoingMessage, RouteResult
from presence.outbox.replies import Probe, Reply
from presence.outbox.steps import FENCE_TTL_S, Step
from presence.store.cluster_routes import Connect
from presence.store.keys import Keys
from presence.store.redis_client import open_client
from presence.store.script_arguments import (
    DATA_VERSION,
    Shape,
    is_name,
    read_lease_row,
    read_probe,
    read_reply,
    unpacked,
)
from presence.store.script_runner import Call, Scripting

T = TypeVar("T")

_NO_RECIPIENTS: Final = RouteResult(0)


class RedisStore(Scripting):
    """A `Store` on Redis or Valkey, 6.2 or newer.

    Args:
        url, connect: see `Scripting`.
        shape: key names and bounds.
    """

    def __init__(self, url: str, shape: Shape, connect: Connect = open_client) -> None:
        super().__init__(url, connect)
        self._shape = shape

    def check_meta(self, shards: Collection[int] = ()) -> None:
        """Compare version and shards with those in Redis, or write them."""
        key, ours, url = self._shape.keys.meta, str(self._shape.keys.shards), redacted(self.url)
        writes = [("HSETNX", key, "version", DATA_VERSION), ("HSETNX", key, "shards", ours)]
        found = self.commands(key, [*writes, ("HMGET", key, "version", "shards")])[-1]
        if not all(value.isdigit() for value in found):
            version, present = found
            raise StoreMismatch(
                f"{url}: {key} is damaged, with version {version!r} and shards {present!r}: "
                f"redis-cli DEL {key}, and servers write it again"
            )
        version, present = (value.decode() for value in found)
        _check_version(f"{url}: {key}", version)
        if present != ours:
            raise StoreMismatch(f"{url}: {key} has shards {present}, this node is set to shards {ours}")
        keys = [self._shape.keys.shard_meta(shard) for shard in shards]
        versions = self._exchange(keys, [("HGET", key, "version") for key in keys])
        for key, version in zip(keys, versions, strict=True):
            if isinstance(version, bytes):  # a shard that cannot be read is checked when it is opened
                _check_version(f"{url}: {key}", version.decode("utf-8", "replace"))

    def apply(self, steps: Sequence[Step]) -> list[Reply | StoreUnavailable | StoreError]:
        """Perform the steps in one round trip."""
        answers = self.evaluate([self._shape.call(step) for step in steps])
        return [_read(answer, partial(read_reply, step)) for step, answer in zip(steps, answers, strict=True)]

    def probe(
        self, node: str, inbox_read: Mapping[int, int]
    ) -> dict[int, Probe | StoreUnavailable | StoreError]:
        """Probe shards in one round trip."""
        calls = [
            Call("probe", self._shape.key_names(shard, node), self._shape.probe_arguments(shard, node, after))
            for shard, after in inbox_read.items()
        ]
        answers = zip(inbox_read, self.evaluate(calls), strict=True)
        return {shard: _read(answer, partial(read_probe, shard, node)) for shard, answer in answers}


def _check_version(key: str, version: str) -> None:
    if version != DATA_VERSION:
        raise StoreMismatch(
            f"{key} has data of version {version!r}, this release knows version {DATA_VERSION}: "
            "use the release that wrote it, or another prefix"
        )


def _read(answer: Any, read: Callable[[Any], T]) -> T | StoreUnavailable | StoreError:
    """Return a parsed answer, or an error if the data of the scripts was overwritten."""
    if isinstance(answer, (StoreUnavailable, StoreError)):
        return answer
    try:
        return read(answer)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        return StoreError(f"an answer that no script gives: {type(error).__name__}: {error}")


class RedisLeaseTable(Scripting):
    """A `LeaseTable`; in a cluster it is on one server.

    Args:
        url, connect: see `Scripting`.
        keys: key names.
        lease_s: duration of a lease by Redis' clock; only shown, see `lease.lua`.
    """

    def __init__(self, url: str, keys: Keys, lease_s: float, connect: Connect = open_client) -> None:
        super().__init__(url, connect)
        self._keys = keys
        self._lease_ms = round(lease_s * 1000)

    def renew(
        self, node: str, counter: int, stats: str, sweeping: Sequence[str]
    ) -> Mapping[str, LeaseRow] | None:
        arguments = [node, counter, self._lease_ms, stats, msgpack.packb(list(sweeping))]
        answer = unpacked(self.one(Call("lease", self._keys.lease_keys, arguments)))
        if answer["status"] != "ok":
            return None
        rows = {name: read_lease_row(text, end_ms) for name, text, end_ms in answer["rows"] if is_name(name)}
        if answer["entered"] and node in rows:
            rows[node] = replace(rows[node], is_new=True)
        return rows

    def claim(self, node: str, seen: str, wanted: str) -> bool:
        return self._change(node, seen, wanted) is not None

    def remove(self, node: str, seen: str) -> str | None:
        return self._change(node, seen, "")

    def _change(self, node: str, seen: str, wanted: str) -> str | None:
        arguments = [node, seen, wanted, FENCE_TTL_S * 1000]
        answer = unpacked(self.one(Call("claim", self._keys.lease_keys, arguments)))
        return answer.get("told", "") if answer["status"] == "ok" else None


def _parts(message: OutgoingMessage) -> tuple[str, bytes | list[Any]]:
    """Return what deliver.lua takes for one message."""
    if message.reply_to is None:
        return message.to, message.frame
    only: list[Any] = [] if message.device is None else [message.device]
    if (confirm := message.confirm) is not None:
        only = [only[0] if only else False, round(confirm.within_s * 1000), confirm.number, confirm.node]
    return message.to, [message.frame, *message.reply_to, *only]


class Deliveries(Scripting):
    """A `MessageBus`: one script call per shard and batch; more if the records of recipients are large.

    Args:
        url, connect: see `Scripting`.
        shape: key names.
    """

    def __init__(self, url: str, shape: Shape, connect: Connect = open_client) -> None:
        super().__init__(url, connect)
        self._shape = shape

    def deliver(
        self, node: str, messages: Sequence[OutgoingMessage], here: Mapping[str, Mapping[str, int]]
    ) -> list[RouteResult | StoreUnavailable | StoreError]:
        """Send messages to the nodes that have their recipients."""
        places: dict[int, list[int]] = {}  # by shard, in order
        for place, message in enumerate(messages):
            places.setdefault(self._shape.keys.shard(message.to), []).append(place)
        answers: list[RouteResult | StoreUnavailable | StoreError] = [_NO_RECIPIENTS] * len(messages)
        while places:
            places = self._deliver_some(node, messages, here, places, answers)
        return answers

    def _deliver_some(
        self,
        node: str,
        messages: Sequence[OutgoingMessage],
        here: Mapping[str, Mapping[str, int]],
        places: Mapping[int, list[int]],
        answers: list[RouteResult | StoreUnavailable | StoreError],
    ) -> dict[int, list[int]]:
        """Deliver the messages at some places, by shard; set their answers, and return the places left."""
        in_cluster = "1" if self.is_cluster else ""
        calls = []
        for shard, some in places.items():
            flat = [part for place in some for part in _parts(messages[place])]
            ours = {to: here[to] for place in some if (to := messages[place].to) in here}
            # Lua's MessagePack knows one kind of string: old raw.
            packed = [msgpack.packb(each, use_bin_type=False) for each in (flat, ours)]
            calls.append(self._shape.operator_call("deliver", shard, [node, in_cluster, *packed]))
        left: dict[int, list[int]] = {}
        for (shard, some), answer in zip(places.items(), self.evaluate(calls), strict=True):
            if isinstance(answer, (StoreUnavailable, StoreError)):
                for place in some:
                    answers[place] = answer
                continue
            flat = unpacked(answer[0])
            for place, handed, devices in zip(some, flat[::2], flat[1::2], strict=True):
                if handed is False:
                    left.setdefault(shard, []).append(place)
                else:
                    answers[place] = RouteResult(handed, tuple(devices or ()), is_hidden=devices is False)
        return left
