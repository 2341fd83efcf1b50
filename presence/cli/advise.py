"""``presence advise``: prints which idle time-out and grace would have spared users short absences."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from presence.cli.errors import OK, Progress
from presence.cli.options import DataLocation, add_reader, duration
from presence.cli.redis_errors import with_redis
from presence.common.text import json_line, utc_time
from presence.ops.advise import WITHIN_S, Adviser
from presence.ops.explain_text import span

_DESCRIPTION = (
    "Reads the events of the last days, and prints how many users who went offline were back soon, and which "
    "idle time-out or grace would have spared 90 % of those who were back within a minute. Servers may run "
    "meanwhile: nothing is changed."
)
_HEADINGS = ("OFFLINE AS", "TIME-OUT", "USERS", *(f"BACK IN {each} s" for each in WITHIN_S), "SPARES 90 %")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument(
        "--last",
        metavar="DURATION",
        type=duration,
        default=7 * 86400.0,
        help="how far back, as 90s, 10m, 1h or 7d (default 7d, or as far as the streams go)",
    )
    add_reader(parser, "print one JSON object")


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    with Adviser(place.redis_url, prefix=place.prefix) as adviser:
        advice = adviser.advise(args.last, Progress("advise", "read"))
    print(json_line(advice) if args.json else "\n".join(_lines(advice)))
    return OK


def _lines(advice: Mapping[str, Any]) -> Iterator[str]:
    from_ms, to_ms = advice["from_ms"], advice["to_ms"]
    late = "; the streams begin here" if from_ms > advice["asked_from_ms"] else ""
    yield f"{advice['entries']:,} entries since {utc_time(from_ms)}, {span((to_ms - from_ms) / 1000)}{late}"
    rows = [_HEADINGS, *map(_row, advice["absences"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, "<>>>>><", strict=True)  # alignment
        yield "  ".join(f"{cell:{side}{width}}" for cell, width, side in cells).rstrip()
    yield "not seen: users who stayed away, and those who were back later than in a minute"
    for name, what in _LEFT_OUT.items():
        if advice[name]:
            yield f"not counted: {advice[name]:,} {what}"


_LEFT_OUT = {
    "undecided": "users who went offline within the last minute",
    "forgotten": "returns, perhaps: so many users were away together",
    "unreadable": "unreadable entries",
    "gaps": "gaps: events are missing, and with them absences",
}


def _row(absences: Mapping[str, Any]) -> tuple[str, ...]:
    offline, idle_timeout_s = absences["offline"], absences["idle_timeout_s"]
    returned = (f"{count:,} ({100 * count / offline:.1f} %)" for count in absences["returned"].values())
    return (
        absences["reason"] or str(absences["code"]),
        "" if idle_timeout_s is None else f"{idle_timeout_s} s",
        f"{offline:,}",
        *returned,
        _spares(absences["spare"]),
    )


def _spares(spare: Mapping[str, Any] | None) -> str:
    if spare is None:
        return "-"
    if spare["seconds"] is None:
        return f"{spare['setting']} {spare['more_s']} s longer, idle_timeout {spare['idle_timeout_s']}"
    least = "" if spare["setting"] == "idle_timeout" else f", idle_timeout {spare['idle_timeout_s']}"
    return f"{spare['setting']} {spare['seconds']}{least}"
