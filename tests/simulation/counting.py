"""What nodes have counted beside what was written: each event of a batch once, and none besides."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.judge import Judge
    from tests.simulation.observed import Entry

Kind = tuple[str, str]  # type and reason

_FLOOR: Final = "floor"  # an entry that is taken out again at once


class Counting:
    """All that was written, though Redis may have forgotten it."""

    def __init__(self) -> None:
        self._by_batches: dict[str, Counter[Kind]] = {}  # by the node id that called
        self._by_others: dict[str, Counter[Kind]] = {}

    def wrote(self, entry: Entry) -> None:
        """A script wrote an entry."""
        kind = entry.fields["type"]
        if kind != _FLOOR:
            written = self._by_batches if entry.script == "apply" else self._by_others
            written.setdefault(entry.caller, Counter())[kind, entry.fields.get("reason", kind)] += 1

    def compare(self, judge: Judge, host: Host, *, forgot: bool) -> None:
        """Judge a process that runs; `forgot`: Redis lost data, and so perhaps the answer to a batch."""
        batches, others = self._of(self._by_batches, host), self._of(self._by_others, host)
        report = host.node.relay.transitions.report()
        counted = Counter({(type, reason): n for type, ns in report.items() for reason, n in ns.items()})
        if twice := counted - (batches + others):
            judge.broken("counted", "{} counts what was not written: {}", host.name, dict(twice))
        if not forgot and (missed := batches - counted):
            judge.broken("counted", "{} does not count what was written: {}", host.name, dict(missed))

    def _of(self, written: dict[str, Counter[Kind]], host: Host) -> Counter[Kind]:
        return sum((written.get(id, Counter()) for id in host.ids), Counter())
