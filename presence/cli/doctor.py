"""``presence doctor``: checks what a server needs from this machine and its Redis, and suggests fixes."""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from presence.cli.errors import FAILED, OK
from presence.cli.options import Load, add_json, add_settings
from presence.common.redaction import redact_text
from presence.common.text import printable
from presence.config.settings import FIELDS
from presence.doctor.results import CHECKS, CheckResult, CheckStatus, worst
from presence.doctor.run import CheckContext, run_checks

_WIDTH = max(len(status.value) for status in CheckStatus)


_DESCRIPTION = (
    "Compares what a server with these settings needs with what is present, and prints a fix for each "
    "difference. Takes the flags, variables and file of serve, works with or without a running server, and "
    "changes nothing. In Redis it checks permissions by queueing commands in a transaction that it discards, "
    "which leaves entries in ACL LOG. Checks that it has no permission for are reported as not tried. Exit "
    "status: 0 if no check fails, 1 if one does, 2 for a usage error."
)


class _Columns(argparse.HelpFormatter):
    """Keeps the line breaks of the list of checks."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = "\n".join(["checks:", *(f"  {name:<20}  {about}" for name, about in CHECKS.items())])
    parser.formatter_class = _Columns
    parser.add_argument("--all", action="store_true", dest="show_all", help="also print the checks that pass")
    add_json(parser, "print one JSON object: status and checks")
    parser.add_argument(
        "--handler",
        dest="handlers",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="also import this handler of follow-ups; may be repeated",
    )
    add_settings(parser, tuple(FIELDS))


def run(args: argparse.Namespace, load: Load) -> int:
    """Print problems, or all results; return the exit status: 1 if a check fails."""
    results = run_checks(CheckContext(load, args.handlers))
    if args.json:
        checks = [{**asdict(each), "status": each.status.value} for each in results]
        print(redact_text(json.dumps({"status": worst(results).value, "checks": checks}, indent=2)))
    else:
        for line in _lines(results, show_all=args.show_all):
            print(printable(redact_text(line)))
    return FAILED if worst(results) is CheckStatus.FAIL else OK


def _lines(results: Sequence[CheckResult], *, show_all: bool) -> Iterable[str]:
    """Give failures first, and passed checks only if `show_all`."""
    indent = " " * (_WIDTH + 2)
    left_out: dict[tuple[str, str], list[str]] = {}
    for each in results:
        if each.status is CheckStatus.NOT_TRIED:
            left_out.setdefault((each.have, each.fix), []).append(each.check)
    for status in (CheckStatus.FAIL, CheckStatus.WARN):
        for each in results:
            if each.status is status:
                yield f"{status.value:<{_WIDTH}}  {each.check}: {each.have}"
                yield from (f"{indent}need: {each.need}", f"{indent}fix: {each.fix}")
    for (why, fix), names in left_out.items():
        yield f"{CheckStatus.NOT_TRIED.value:<{_WIDTH}}  {', '.join(names)}: {why}"
        if fix:
            yield f"{indent}fix: {fix}"
    for each in results if show_all else ():
        if each.status is CheckStatus.OK:
            yield f"{CheckStatus.OK.value:<{_WIDTH}}  {each.check}: {each.have} (need: {each.need})"
    tally = Counter(each.status for each in results)
    yield ", ".join(f"{tally[status]} {status.value}" for status in reversed(CheckStatus))
