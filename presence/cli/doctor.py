"""``presence doctor``: what a server would miss on this machine and in its Redis, and what mends it."""

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
from presence.doctor.examination import CheckContext, examine
from presence.doctor.findings import CHECKS, CheckStatus, Finding, worst

_WIDTH = max(len(status.value) for status in CheckStatus)


_DESCRIPTION = (
    "Says what a server of these settings would miss, as need against have, and the line that mends it. "
    "Takes what serve takes, reads the same variables and file, works beside a server that runs and without "
    "one, and changes nothing: it asks. In Redis it looks at rights by queueing commands in a transaction "
    "that it drops, which leaves lines in ACL LOG. What it may not ask is told as not tried. Exit status: 0 "
    "when nothing fails, 1 when something does, 2 when the command line is wrong."
)


class _Columns(argparse.HelpFormatter):
    """Leaves the lines of what is looked at as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what may be said after ``presence doctor``."""
    parser.description = _DESCRIPTION
    parser.epilog = "\n".join(["looks at:", *(f"  {name:<20}  {about}" for name, about in CHECKS.items())])
    parser.formatter_class = _Columns
    parser.add_argument("--all", action="store_true", dest="show_all", help="print what is well, too")
    add_json(parser, "one JSON object: status and checks")
    parser.add_argument(
        "--handler",
        dest="handlers",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="import this function for follow-ups, too; may be given again",
    )
    add_settings(parser, tuple(FIELDS))


def run(args: argparse.Namespace, load: Load) -> int:
    """Print what is wrong, or all findings; return the exit status: 1 if a check fails."""
    findings = examine(CheckContext(load, args.handlers))
    if args.json:
        checks = [{**asdict(each), "status": each.status.value} for each in findings]
        print(redact_text(json.dumps({"status": worst(findings).value, "checks": checks}, indent=2)))
    else:
        for line in _lines(findings, show_all=args.show_all):
            print(printable(redact_text(line)))
    return FAILED if worst(findings) is CheckStatus.FAIL else OK


def _lines(findings: Sequence[Finding], *, show_all: bool) -> Iterable[str]:
    """Give the worst first, and what is well only if all is wanted."""
    indent = " " * (_WIDTH + 2)
    left_out: dict[tuple[str, str], list[str]] = {}
    for each in findings:
        if each.status is CheckStatus.NOT_TRIED:
            left_out.setdefault((each.have, each.mend), []).append(each.check)
    for status in (CheckStatus.FAIL, CheckStatus.WARN):
        for each in findings:
            if each.status is status:
                yield f"{status.value:<{_WIDTH}}  {each.check}: {each.have}"
                yield from (f"{indent}need: {each.need}", f"{indent}mend: {each.mend}")
    for (why, mend), names in left_out.items():
        yield f"{CheckStatus.NOT_TRIED.value:<{_WIDTH}}  {', '.join(names)}: {why}"
        if mend:
            yield f"{indent}mend: {mend}"
    for each in findings if show_all else ():
        if each.status is CheckStatus.OK:
            yield f"{CheckStatus.OK.value:<{_WIDTH}}  {each.check}: {each.have} (need: {each.need})"
    tally = Counter(each.status for each in findings)
    yield ", ".join(f"{tally[status]} {status.value}" for status in reversed(CheckStatus))
