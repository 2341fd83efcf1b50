"""``presence doctor``: what a server would miss on this machine and in its Redis, and what mends it."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from presence.commands.outcome import FAILED, OK
from presence.doctor.examination import Patient, examine
from presence.doctor.findings import Finding, Status, worst
from presence.redaction import redact_text
from presence.rendering import printable

_WIDTH = max(len(status.value) for status in Status)


def run(patient: Patient, *, as_json: bool, show_all: bool = False) -> int:
    """Print what is wrong, or all findings; return the exit status: 1 if a check fails."""
    findings = examine(patient)
    if as_json:
        checks = [{**asdict(each), "status": each.status.value} for each in findings]
        print(redact_text(json.dumps({"status": worst(findings).value, "checks": checks}, indent=2)))
    else:
        for line in _lines(findings, show_all=show_all):
            print(printable(redact_text(line)))
    return FAILED if worst(findings) is Status.FAIL else OK


def _lines(findings: Sequence[Finding], *, show_all: bool) -> Iterable[str]:
    """Give the worst first, and what is well only if all is wanted."""
    indent = " " * (_WIDTH + 2)
    left_out: dict[tuple[str, str], list[str]] = {}
    for each in findings:
        if each.status is Status.NOT_TRIED:
            left_out.setdefault((each.have, each.mend), []).append(each.check)
    for status in (Status.FAIL, Status.WARN):
        for each in findings:
            if each.status is status:
                yield f"{status.value:<{_WIDTH}}  {each.check}: {each.have}"
                yield from (f"{indent}need: {each.need}", f"{indent}mend: {each.mend}")
    for (why, mend), names in left_out.items():
        yield f"{Status.NOT_TRIED.value:<{_WIDTH}}  {', '.join(names)}: {why}"
        if mend:
            yield f"{indent}mend: {mend}"
    for each in findings if show_all else ():
        if each.status is Status.OK:
            yield f"{Status.OK.value:<{_WIDTH}}  {each.check}: {each.have} (need: {each.need})"
    tally = Counter(each.status for each in findings)
    yield ", ".join(f"{tally[status]} {status.value}" for status in reversed(Status))
