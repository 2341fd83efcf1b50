"""``presence plan``: how many workers, how much memory and Redis a number of users takes."""

import argparse
import math
from dataclasses import asdict
from typing import Any

from presence.cli.errors import OK
from presence.cli.options import UsageError, positive_seconds
from presence.common.text import json_line
from presence.core.engine import KEEPALIVE_SHARE
from presence.ops.plan import MB, SPARE, Cost, Demand, Need, need

_DESCRIPTION = (
    "Prints what a number of users takes, from costs measured on two shared cores: the least and the most. "
    "Provide what the last column says, which is the most and half as much again. Workers are without "
    "reserve: with two machines run all of them on each. Rooms are not counted."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    add = parser.add_argument
    add("users", type=int, metavar="USERS", help="who use the app at all")
    add("--visits", type=float, default=10.0, metavar="N", help="visits of each user per day (default 10)")
    add("--minutes", type=float, default=10.0, metavar="MIN", help="that a visit takes (default 10)")
    add(
        "--peak",
        type=float,
        default=3.0,
        metavar="N",
        help="times the mean at the busiest moment (default 3)",
    )
    add(
        "--idle-timeout", type=positive_seconds, default=30.0, metavar="S", help="of the clients (default 30)"
    )
    add("--no-tls", action="store_true", help="clients connect without TLS, or a proxy has it")
    add("--no-tokens", action="store_true", help="clients log in without tokens")
    add("--descriptors", type=int, default=20_000, metavar="N", help="limit of a process (default 20000)")
    add("--events", type=int, default=1_000_000, metavar="N", help="kept in the stream (default 1000000)")
    add(
        "--websocket",
        type=float,
        default=0.0,
        metavar="PCT",
        help="of the clients over WebSocket (default 0)",
    )
    add("--friends", type=float, default=0.0, metavar="N", help="whom each client watches (default 0)")
    add(
        "--changes",
        type=float,
        default=0.0,
        metavar="PCT",
        help="of the users online who change status or meta in a minute (default 0)",
    )
    add("--no-batch", action="store_true", help="clients do not say `batch` at login; the libraries do")
    add("--json", action="store_true", help="print one JSON object: demand and need")


def run(args: argparse.Namespace, _load: object) -> int:
    numbers = {"USERS": args.users, "--visits": args.visits, "--minutes": args.minutes, "--peak": args.peak}
    numbers |= {"--descriptors": args.descriptors, "--events": args.events}
    for name, value in numbers.items():
        if not 0 < value < float("inf"):
            raise UsageError(f"{name} must be above 0, not {value:g}")
    shares = {"--websocket": args.websocket, "--friends": args.friends, "--changes": args.changes}
    for name, value in shares.items():
        if not 0 <= value < float("inf"):
            raise UsageError(f"{name} must not be below 0, like {value:g}")
    if args.websocket > 100:
        raise UsageError(f"--websocket must not be above 100, like {args.websocket:g}")
    demand = Demand(
        args.users,
        args.visits,
        args.minutes,
        args.peak,
        args.idle_timeout,
        tls=not args.no_tls,
        tokens=not args.no_tokens,
        descriptors=args.descriptors,
        events=args.events,
        websocket=args.websocket / 100,
        friends=args.friends,
        changes=args.changes,
        batch=not args.no_batch,
    )
    try:
        found = need(demand)
    except ValueError as error:
        raise UsageError(str(error)) from None
    print(json_line(_as_json(demand, found)) if args.json else "\n".join(_lines(demand, found)))
    return OK


def _as_json(demand: Demand, found: Need) -> dict[str, Any]:
    at_peak = ("online", "visits_per_s", "keepalives_per_s", "changes_per_s", "told")
    return {
        "demand": asdict(demand) | {name: getattr(demand, name) for name in at_peak},
        "need": asdict(found),
    }


def _lines(demand: Demand, found: Need) -> list[str]:
    interval_s = KEEPALIVE_SHARE * demand.idle_timeout
    rows = [
        ("at the peak", "", ""),
        ("  users online", f"{demand.online:,}", ""),
        ("  logins per second", f"{demand.visits_per_s:,.1f}", ""),
        (
            "  keepalives per second",
            f"{demand.keepalives_per_s:,.0f}",
            f"each client one per {interval_s:g} s",
        ),
        *(_watching(demand, found) if demand.friends else ()),
        ("which takes", "as measured", "provide"),
        ("  servers, cores", _span(found.cores), f"{found.cores.most * SPARE:.2f}"),
        ("  servers, MB", _span(found.memory, 1 / MB), f"{found.memory.most * SPARE / MB:,.0f}"),
        ("  Redis, cores", _span(found.redis_cores), f"{found.redis_cores.most * SPARE:.2f}"),
        ("  Redis, MB", _span(found.redis_memory, 1 / MB), f"{found.redis_memory.most * SPARE / MB:,.0f}"),
    ]
    if demand.friends:
        mbit = found.to_clients.times(8e-6)
        rows.append(("  to clients, Mbit/s", _span(mbit), f"{mbit.most * SPARE:,.0f}, for watches alone"))
    rows += [
        ("  all log in again", f"{_span(found.log_in_all_s)} s", "of one core, all servers together"),
        ("settings", "", ""),
        (
            "  workers, all machines",
            f"{found.workers}",
            f"without reserve; {demand.descriptors:,} descriptors each",
        ),
    ]
    if demand.friends:
        rows.append(
            ("  watch_memory", f"{math.ceil(found.watch_memory.most * SPARE / MB):,}", "MB, of each worker")
        )
    rows.append(
        ("  events kept", f"{demand.events:,}", f"for {_span(found.events_h)} h, shortest at the peak")
    )
    return [f"{name:<24}  {value:<18}  {note}".rstrip() for name, value, note in rows]


def _watching(demand: Demand, found: Need) -> list[tuple[str, str, str]]:
    return [
        (
            "  changes per second",
            f"{demand.changes_per_s:,.1f}",
            f"each to {demand.told:,.1f} friends online",
        ),
        ("  watched, per worker", f"{found.watched_users:,}", f"users, by {found.watches:,} watches"),
    ]


def _span(cost: Cost, unit: float = 1.0) -> str:
    least, most = cost.least * unit, cost.most * unit
    digits = 0 if most >= 100 else 2
    texts = [f"{each:,.{digits}f}" for each in (least, most)]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)
