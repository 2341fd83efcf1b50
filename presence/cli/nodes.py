"""``presence nodes``: prints the servers that share a Redis, from their leases."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from presence.cli.errors import OK
from presence.cli.options import DataLocation, add_reader
from presence.cli.redis_errors import with_redis
from presence.common.text import json_line, printable, utc_time
from presence.reader import PresenceReader
from presence.store.node_states import NodeState

_HEADINGS = ("NODE", "ADDRESS", "PROCESS", "SESSIONS", "CONNS", "STATE, LEASE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_reader(parser, "print one JSON object: node to its details")


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    with PresenceReader(place.redis_url, prefix=place.prefix) as reader:
        nodes = reader.nodes()
    if args.json:
        print(json_line({node.node: asdict(node) for node in nodes}))
    elif nodes:
        print("\n".join(_table(nodes)))
    else:
        print(f"no nodes: no server has a lease in this Redis under the prefix {printable(place.prefix)}")
    return OK


def _table(nodes: list[NodeState]) -> Iterator[str]:
    rows = [_row(node) for node in nodes]
    widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    for node, row in zip([None, *nodes], [_HEADINGS, *rows], strict=True):
        cells = zip(row, widths, "<<<>><", strict=True)  # alignment
        yield "  ".join(f"{cell:{side}{width}}" for cell, width, side in cells).rstrip()
        if node and node.sweeper and node.status == "left":
            yield f"  being swept by {printable(node.sweeper)}: users who have not returned go offline"
        elif node and node.sweeper:
            yield f"  dead: being swept by {printable(node.sweeper)}, its users go offline"


def _row(node: NodeState) -> tuple[str, ...]:
    sessions, connections = ("-" if n is None else str(n) for n in (node.sessions, node.connections))
    host = node.host or "-"
    return (
        printable(node.node),
        printable(node.address or "-"),
        printable(host if node.pid is None else f"{node.pid}@{host}"),
        sessions,
        connections,
        _described(node),
    )


def _described(node: NodeState) -> str:
    if node.left_ms is not None:
        return f"left at {utc_time(node.left_ms)}"
    left_s = node.lease_left_s
    if left_s is None:
        return "no lease"
    if left_s <= 0:
        return f"silent for {-left_s:.0f} s"
    return f"{printable(node.readiness or '-')}, {left_s:.1f} s"
