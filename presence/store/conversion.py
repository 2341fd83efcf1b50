"""Conversion of data of version 1, in which the hash of a node also had its sessions and pending logins.

The version in `Keys.meta` keeps servers of other releases from starting. Each shard has its own, because a
failover may undo the conversion of one.
"""

from collections.abc import Iterable
from typing import Any, Final

from presence.common.errors import StoreError, StoreMismatch, StoreUnavailable
from presence.store.keys import Keys
from presence.store.nodes import load_stats
from presence.store.script_arguments import DATA_VERSION, MAX_FIELDS_PER_CALL, Shape, unpacked
from presence.store.script_runner import Scripting

CONVERTIBLE: Final = "1"


def unknown_version(key: str, version: str) -> StoreMismatch:
    """Return the error of a version that this release cannot convert."""
    return StoreMismatch(
        f"{key} has data of version {version}, this release knows version {DATA_VERSION}: "
        "use the release that wrote it, or another prefix"
    )


def end_version_1(scripts: Scripting, keys: Keys) -> None:
    """Let no server of version 1 start any more; `StoreMismatch` if one is running."""
    ends, leases, stats, *_ = keys.lease_keys
    tables = [("HGETALL", leases), ("HGETALL", stats)]
    reads: list[Any] = [("TIME",), ("ZRANGE", ends, 0, -1, "WITHSCORES"), *tables]
    (seconds, _), scored, *flat = scripts.commands(ends, reads)
    rows, stats_of = (dict(zip(each[::2], each[1::2], strict=True)) for each in flat)
    for node, end_ms in zip(scored[::2], scored[1::2], strict=True):
        has_stopped = b" " in rows.get(node, b" ")  # it has drained, or was declared dead: see lease.lua
        # If Redis went back to a state from before the conversion, servers of this version may be running.
        is_ours = load_stats(stats_of.get(node, b"")).get("data_version") == DATA_VERSION
        if float(end_ms) > int(seconds) * 1000 and not has_stopped and not is_ours:
            raise StoreMismatch(
                f"the data has version {CONVERTIBLE}, and a server of that version is running: "
                f"{node.decode('utf-8', 'replace')}; stop all servers before this one starts"
            )
    scripts.commands(keys.meta, [("HSET", keys.meta, "version", DATA_VERSION)])


def convert(scripts: Scripting, shape: Shape, shards: Iterable[int]) -> None:
    """Convert those of some shards that can be reached and have version 1."""
    places = dict.fromkeys(shards, "")
    while places:
        calls = [
            shape.operator_call("convert", shard, [DATA_VERSION, place, MAX_FIELDS_PER_CALL])
            for shard, place in places.items()
        ]
        for shard, answer in zip([*places], scripts.evaluate(calls), strict=True):
            places.pop(shard)
            if isinstance(answer, StoreError):
                raise answer
            if isinstance(answer, StoreUnavailable):
                continue
            state = unpacked(answer[0])
            if state["version"] not in {CONVERTIBLE, DATA_VERSION}:
                raise unknown_version(shape.keys.shard_meta(shard), state["version"])
            if state["place"]:
                places[shard] = state["place"]
            elif state["version"] == CONVERTIBLE:
                import structlog  # noqa: PLC0415 - of the extra `server`, which senders do without

                structlog.get_logger(__name__).info("shard converted", shard=shard, version=DATA_VERSION)
