"""The generators' processes, seen from the process that gives the orders."""

import contextlib
import json
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest.scale.generator import SOURCES
from loadtest.scale.verdict import Truth

END_TIMEOUT_S = 20.0


@dataclass
class Status:
    """How the generators stand together; the counts are since the beginning, but `beats` since the last mark.

    Attributes:
        online, arriving: clients that are logged in, and that are to be.
        is_beating: whether any generator has beats to come.
        beats: that were sent.
        late_max_s: the latest beat since the last mark.
        lost, refused, failed: sessions and logins, by reason.
        stuck: beats that the kernel did not take.
    """

    online: int = 0
    arriving: int = 0
    is_beating: bool = False
    beats: int = 0
    late_max_s: float = 0.0
    lost: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    stuck: int = 0

    @classmethod
    def of(cls, answers: Sequence[dict[str, Any]]) -> "Status":
        """Return how all generators stand together, given the answer of each."""

        def total(name: str) -> int:
            return sum(answer[name] for answer in answers)

        def counts(name: str) -> Counter[str]:
            return sum((Counter(answer[name]) for answer in answers), Counter())

        return cls(
            total("online"),
            total("arriving"),
            any(answer["is_beating"] for answer in answers),
            total("beats"),
            max(answer["late_max_s"] for answer in answers),
            counts("lost"),
            counts("refused"),
            counts("failed"),
            total("stuck"),
        )


@dataclass
class Figures:
    """What a phase was like for the generators; `late_s` and `login_s` in rising order."""

    status: Status
    cpu_s: float
    late_s: list[float]
    login_s: list[float]


class Fleet:
    """All generators, between them so many connections.

    Args:
        servers: hosts and ports; each connection goes to one of them at random.
        connections: of all generators together.
        processes: how many generators.
    """

    def __init__(self, servers: Sequence[tuple[str, int]], connections: int, processes: int) -> None:
        name = secrets.token_hex(3)
        self._processes: list[subprocess.Popen[str]] = []
        for number in range(processes):
            share = connections * (number + 1) // processes - connections * number // processes
            arguments = [json.dumps(servers), f"{name}-{number}", str(share), str(number * SOURCES)]
            command = [sys.executable, "-m", "loadtest.scale.generator", *arguments]
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )

    def do(self, order: str, *arguments: float) -> list[Any]:
        """Give the order to all; return their answers."""
        line = json.dumps([order, *arguments]) + "\n"
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
        return [self._answer(process, order) for process in self._processes]

    def bring(self, per_second: float) -> None:
        """Let all who are away log in, at that rate together."""
        self.do("bring", per_second / len(self._processes))

    def status(self) -> Status:
        """How they stand."""
        return Status.of(self.do("status"))

    def figures(self) -> Figures:
        """What was since the last ``mark``."""
        answers = self.do("figures")
        return Figures(
            Status.of(answers),
            sum(answer["cpu_s"] for answer in answers),
            sorted(late for answer in answers for late in answer["late_s"]),
            sorted(seconds for answer in answers for seconds in answer["login_s"]),
        )

    def truths(self) -> list[Truth]:
        """What each client that was ever logged in last did."""
        rows: list[Truth] = []
        for answer in self.do("facts"):
            columns = (answer[name] for name in ("uids", "sessions", "begun", "before"))
            rows += (Truth(*row) for row in zip(*columns, strict=True))
        return [row for row in rows if row.session]

    def close(self) -> None:
        """End the processes, and their connections with them."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _answer(self, process: "subprocess.Popen[str]", order: str) -> Any:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"a load generator ended at the order: {order}")
        return json.loads(line)


@contextlib.contextmanager
def running_fleet(servers: Sequence[tuple[str, int]], connections: int, processes: int) -> Iterator[Fleet]:
    """Run generators for the length of a ``with`` block."""
    fleet = Fleet(servers, connections, processes)
    try:
        yield fleet
    finally:
        fleet.close()
