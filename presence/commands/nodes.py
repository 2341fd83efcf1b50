"""``presence nodes``: the servers that share a Redis, from their leases."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from presence.commands.options import Place, add_reader
from presence.commands.outcome import OK
from presence.commands.reaching import asks_redis
from presence.reader import PresenceReader
from presence.rendering import json_line, printable, utc_time
from presence.store.nodes import NodeState

LINE_CHARS = 100  # names of containers are long: they are cut if a line would be longer than this
PROCESS_MIN_CHARS = 8
_HEADINGS = ("NODE", "ADDRESS", "PROCESS", "SESSIONS", "CONNS", "STATE, LEASE")
_PROCESS, _NUMBERS = 2, {3, 4}  # columns
_GAP = "  "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what may be said after ``presence nodes``."""
    add_reader(parser, "one JSON object: node to what it tells of itself")


@asks_redis
def run(args: argparse.Namespace, place: Place) -> int:
    """Print all nodes; return the exit status."""
    with PresenceReader(place.redis_url, prefix=place.prefix) as reader:
        nodes = reader.nodes()
    if args.json:
        print(json_line({node.node: asdict(node) for node in nodes}))
    elif nodes:
        print("\n".join(_table(nodes)))
    else:
        print(f"no nodes: no server has a lease in this Redis below the prefix {printable(place.prefix)}")
    return OK


def _table(nodes: list[NodeState]) -> Iterator[str]:
    rows = [_row(node) for node in nodes]
    widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    others = sum(widths) - widths[_PROCESS] + len(_GAP) * (len(widths) - 1)
    widths[_PROCESS] = max(PROCESS_MIN_CHARS, min(widths[_PROCESS], LINE_CHARS - others))
    yield _aligned(_HEADINGS, widths)
    for node, row in zip(nodes, rows, strict=True):
        yield _aligned(row, widths)
        if node.sweeper and node.status == "left":
            yield f"  swept by {printable(node.sweeper)}: users who have not returned go offline"
        elif node.sweeper:
            yield f"  dead: its users go offline, swept by {printable(node.sweeper)}"


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


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [
        f"{cell:>{width}}" if column in _NUMBERS else f"{_cut(cell, width):<{width}}"
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return _GAP.join(cells).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _described(node: NodeState) -> str:
    if node.left_ms is not None:
        return f"left at {utc_time(node.left_ms)}"
    left_s = node.lease_left_s
    if left_s is None:
        return "no lease"
    if left_s <= 0:
        return f"silent for {-left_s:.0f} s"
    return f"{printable(node.readiness or '-')}, {left_s:.1f} s"
