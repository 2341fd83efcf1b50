"""``python -m benchmarks.rooms``: what rooms cost Redis and the projector, and how late they are.

Users are written to a private Redis in batches, as the outbox of a node does; the projector is
``presence rooms run``, a process of its own. A *change* is an event and one of its rooms: a user who moves
from one game to another makes two.

- Users join, move and log out: all in one room, in rooms of ten, and in both. The projector stands still
  while this is written; then the processor time is measured until it has applied all: the cost in full calls.
  Bytes per member are those of Redis, with the index of rooms. Members are compared with what was written.
- The same live, at several rates, less the time that Redis takes for the same load without a projector; and
  the lag, from an event to the change of the room.
- A room whose members all fall silent in one tick of a node: seconds until it is empty.
- Clients of a real server that change, and watch rooms: at several rates, the lag from the sending of a
  change to the push that shows it, and whether all views are right (`benchmarks.rooms.push`).

``--faults`` plays faults under load instead: the active of two projectors is killed, all data are deleted, a
replica of Redis takes over.

``--also NAME=PYTHON`` has the projector of another installation run in turn with this one, for the costs in
full calls. Results go to ``--out DIR`` as ``rooms.md`` and ``rooms.json``; the exit status is 1 if a room or
a view was wrong. Needs Linux, and the ``loadtest`` and ``embedded`` extras.

Tests: `tests/benchmarks/test_rooms.py`, `tests/system/benchmarks/test_rooms.py`.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.rooms.costs import WAYS, Spent, WayCosts, measure_way
from benchmarks.rooms.faults import fault_table, play_faults
from benchmarks.rooms.live import IdleCosts, LiveCosts, measure_live
from benchmarks.rooms.push import measure_push, push_table
from benchmarks.rooms.silence import SilenceFigures, measure_silence
from loadtest import usage
from loadtest.arguments import above_0, from_1
from loadtest.outcome import markdown, print_progress, print_verdict, write_results
from loadtest.processes import exit_on_sigterm
from presence.server.process import tune_interpreter

OWN = "presence"
PARTS = ("costs", "live", "silence", "push")
KINDS = ("joins", "moves", "logouts")


def cost_table(found: Sequence[WayCosts]) -> str:
    """Return the medians over rounds."""

    def shown(spent: list[Spent]) -> str:
        redis_us = statistics.median(each.redis_us for each in spent)
        projector_us = statistics.median(each.projector_us for each in spent)
        return f"{redis_us:.1f} + {projector_us:.1f}"

    rows = []
    for way in dict.fromkeys(each.way for each in found):
        for server in dict.fromkeys(each.server for each in found):
            some = [each for each in found if (each.way, each.server) == (way, server)]
            rows.append(
                (
                    way,
                    server,
                    f"{some[0].users:,}",
                    *(
                        shown([getattr(each, name) for each in some])
                        for name in ("joins", "moves", "logouts")
                    ),
                    f"{statistics.median(each.member_bytes for each in some):.0f}",
                )
            )
    head = (
        "users are | projector of | users | joins: µs of Redis + projector a change | moves | logouts "
        "| bytes a member"
    )
    return markdown(head, rows)


def live_table(idle: IdleCosts, found: Sequence[LiveCosts]) -> str:
    head = (
        "events a second | changes | µs of Redis | µs of projector | lag p50, ms | p99 | max | load late, ms"
    )
    rows = [
        (
            f"{each.rate:,.0f}",
            f"{each.changes:,}",
            f"{each.redis_us:.1f}",
            f"{each.projector_us:.1f}",
            *(f"{each.lag_ms(share):.0f}" for share in (0.5, 0.99, 1.0)),
            f"{each.late_s * 1000:.0f}",
        )
        for each in found
    ]
    rests = f"{idle.redis:.1%} of a core in Redis, {idle.projector:.1%} in the projector"
    return f"{markdown(head, rows)}\n\nWith {idle.members:,} members, and no change: {rests}."


def silence_table(found: SilenceFigures) -> str:
    head = "members fall silent | s until all events are in Redis | s from then until the room is empty"
    return markdown(head, [(f"{found.users:,}", f"{found.events_s:.2f}", f"{found.beyond_s:.2f}")])


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rooms",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--users", type=from_1, default=100_000)
    add("--shards", type=from_1, default=1)
    add("--moves", type=above_0, default=0.5, help="of each user, on average (0.5)")
    add("--rounds", type=from_1, default=1, help="of the costs in full calls (1)")
    add("--rates", default="200,1000,3000", help="events a second (200,1000,3000)")
    add("--seconds", type=above_0, default=10.0, help="at each rate (10)")
    add("--clients", type=from_1, default=3000, help="of the part push (3000)")
    add("--workers", type=from_1, default=2, help="of its server (2)")
    add("--push-rates", default="50,200,600", help="changes of its clients a second (50,200,600)")
    add("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    add("--faults", action="store_true", help="faults under load instead")
    add("--fault-rate", type=above_0, default=500.0, help="events a second then (500)")
    add("--also", action="append", default=[], metavar="NAME=PYTHON", help="another installation")
    add("--out", type=Path, help="directory for rooms.md and rooms.json")
    given = parser.parse_args(words)
    if unknown := {*given.parts.split(",")} - {*PARTS}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return given


def measure(given: argparse.Namespace) -> tuple[list[str], dict[str, Any], list[str]]:
    """Return tables, the figures for JSON, and what was broken."""
    parts, texts, figures, broken = given.parts.split(","), list[str](), dict[str, Any](), list[str]()
    servers = {OWN: sys.executable, **dict(each.split("=", 1) for each in given.also)}
    if given.faults:
        faults = play_faults(sys.executable, given.users, given.shards, given.fault_rate)
        broken += [f"{each.name}: {what}" for each in faults for what in each.broken]
        return [fault_table(faults)], {"faults": [asdict(each) for each in faults]}, broken
    if "costs" in parts:
        costs = []
        for way in WAYS:
            for _ in range(given.rounds):
                for server, python in servers.items():
                    one = measure_way(server, python, way, given.users, given.shards, given.moves)
                    print_progress(cost_table([one]).splitlines()[-1])
                    costs.append(one)
        broken += [
            f"{each.way}, {each.server}: {each.wrong:,} rooms are wrong" for each in costs if each.wrong
        ]
        texts.append(cost_table(costs))
        figures["costs"] = [asdict(each) for each in costs]
    if "live" in parts:
        rates = [float(each) for each in given.rates.split(",")]
        idle, live = measure_live(sys.executable, given.users, given.shards, rates, given.seconds)
        texts.append(live_table(idle, live))
        figures |= {"idle": asdict(idle), "live": [asdict(each) | {"lags_ms": None} for each in live]}
        print_progress(texts[-1])
    if "silence" in parts:
        silence = measure_silence(sys.executable, given.users, given.shards)
        texts.append(silence_table(silence))
        figures["silence"] = asdict(silence)
    if "push" in parts:
        rates = [float(each) for each in given.push_rates.split(",")]
        pushes = measure_push(
            sys.executable, given.clients, given.workers, given.shards, rates, given.seconds
        )
        broken += [f"pushes at {each.rate:g} a second: {what}" for each in pushes for what in each.broken]
        texts.append(push_table(pushes))
        figures["push"] = [asdict(each) for each in pushes]
    return texts, figures, broken


def main(words: Sequence[str] | None = None) -> int:
    usage.require_linux()
    given = parse(words)
    tune_interpreter()
    texts, figures, broken = measure(given)
    text = "\n\n".join(texts)
    print(text)
    if given.out:
        write_results(given.out, "rooms", text, figures)
    return print_verdict("benchmarks.rooms", broken)


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
