"""``presence rebalance``: spreads clients evenly over the servers, without an event."""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from presence.cli.errors import FAILED, OK, print_error, sigterm_interrupts
from presence.cli.options import DataLocation, UsageError, add_reader
from presence.cli.redis_errors import caller, with_redis
from presence.common.text import json_line, printable
from presence.ops.explain_text import span
from presence.ops.rebalance import RATE_PER_S, TOLERANCE, Mover, Plan, Standing, Stopped, UnderWay

MIN_RATE, MAX_RATE = 0.2, 200.0  # clients per second and node: one per step; a fifth of a core without TLS
_DESCRIPTION = (
    "Has servers with more clients than the mean send some of them away, slowly. These log in again within "
    "seconds, through the load balancer or name that they use, and no user goes offline. For a server that "
    "is new, or is back. The plan is printed first; ctrl-C or --stop ends it at any time."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    add = parser.add_argument
    add("--dry-run", action="store_true", help="print the plan only")
    add("--stop", action="store_true", help="stop the rebalance in progress, whoever started it")
    add(
        "--rate",
        type=float,
        default=RATE_PER_S,
        metavar="N",
        help=f"clients that each server sends away per second, at most (default {RATE_PER_S:g})",
    )
    add(
        "--tolerance",
        type=float,
        default=100 * TOLERANCE,
        metavar="PERCENT",
        help=f"of the mean, by which servers may differ (default {100 * TOLERANCE:g})",
    )
    add_reader(parser, "print one JSON object: the plan, and how it ended")


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    """Rebalance; return the exit status: 0 if the servers are even now, or were, else 1."""
    if not MIN_RATE <= args.rate <= MAX_RATE:
        raise UsageError(f"rebalance: --rate must be from {MIN_RATE:g} to {MAX_RATE:g} clients per second")
    if not 1 <= args.tolerance <= 100:
        raise UsageError("rebalance: --tolerance must be from 1 to 100 percent")
    with Mover(place.redis_url, prefix=place.prefix, by=caller("rebalance")) as mover, sigterm_interrupts():
        if args.stop:
            names = mover.stop_others()
            for name in sorted(names):
                print(f"stopped: {printable(name)}")
            if not names:
                print("no rebalance is under way")
            return OK
        try:
            return _move(mover, args)
        except UnderWay as other:
            print_error(f"rebalance: another is under way: {other}; presence rebalance --stop ends it")
        except Stopped as error:
            print_error(f"rebalance: {error}")
        except KeyboardInterrupt:
            print_error("rebalance: stopped")
        return FAILED


def _move(mover: Mover, args: argparse.Namespace) -> int:
    plan = mover.plan(args.rate, args.tolerance / 100)
    if not args.json:
        print("\n".join(_lines(plan)), flush=True)
    done = None
    if plan.is_needed and not args.dry_run:
        done = mover.move(plan, lambda each: print_error(f"rebalance: {_reached(each)}"))
        if not args.json:
            print(_reached(done))
    if args.json:
        print(json_line({"plan": _plan_as_json(plan), "done": None if done is None else _as_json(done)}))
    spread = plan.tolerance if done is None else done.spread
    return OK if spread <= plan.tolerance else FAILED


def _lines(plan: Plan) -> Iterator[str]:
    names = {**plan.counts, **plan.unable}
    width = max(map(len, names), default=0)
    for node, count in sorted(names.items()):
        does = ""
        if node in plan.unable:
            does = "keeps its clients: its version cannot send any away"
        elif node in plan.least:
            does = f"sends away {plan.least[node]:,} to {max(plan.least[node], plan.most[node]):,}"
        yield f"{printable(node):<{width}}  {count:>9,} connections  {does}".rstrip()
    if not plan.counts:
        yield "no server is ready that can send clients away"
        return
    percent = f"{100 * plan.tolerance:g} %"
    if not plan.is_needed:
        yield f"all are within {percent} of the mean, {plan.mean:,.0f}: nothing to do"
        return
    yield f"mean {plan.mean:,.0f}; less is sent away if clients return to the least loaded, more if at random"
    yield (
        f"{plan.rate:g} per second and server at most, until all are within {percent} of the mean, or for "
        f"{span(plan.longest_s)}"
    )


def _reached(standing: Standing) -> str:
    counts = ", ".join(f"{each:,}" for _, each in sorted(standing.counts.items()))
    return (
        f"{span(standing.took_s)}: {standing.sent_away:,} clients sent away; connections {counts}: "
        f"within {100 * standing.spread:.1f} % of the mean"
    )


def _plan_as_json(plan: Plan) -> Mapping[str, Any]:
    return {**asdict(plan), "mean": plan.mean, "is_needed": plan.is_needed}


def _as_json(standing: Standing) -> Mapping[str, Any]:
    return {**asdict(standing), "spread": standing.spread}
