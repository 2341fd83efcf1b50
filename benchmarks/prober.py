"""Round trips while a server is under load, seen by a light process of its own.

``python -m benchmarks.prober HOST PORT SETTLE_S SECONDS`` opens some connections beside the load and
prints one JSON object: for each kind of probe the round trips, in ms, and how many probes were not answered.
A probe is sent when it is due, whatever became of the last one, and its time counts from when it was due.
"""

import gc
import json
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from presence.loadtest.client_loop import KEEPALIVE_WITH_ID, ClientLoop, LoopClient
from presence.protocol import KEEPALIVE

PROBES_PER_S = 20  # of each kind
ALWAYS = "acknowledged, always"  # from connections whose every keepalive asks for an answer
SELDOM = "acknowledged, after plain ones"  # from connections of whose keepalives few do
LOGIN = "login"  # connect, log in, receive ok
KINDS = (ALWAYS, SELDOM, LOGIN)
CONNECTIONS = {ALWAYS: 10, SELDOM: 60}
PLAIN_EVERY_S = 0.4  # a connection of the second kind asks every 3 s: after some seven plain keepalives
CONNECT_S = 20.0
LAST_ANSWERS_S = 2.0
END_TIMEOUT_S = 30.0  # of the prober, beyond the time that it takes by design
MISSED_LIMIT = 0.01  # of the probes: what was never answered has no round trip, and would look fast


class Prober(ClientLoop):
    """Sends probes when they are due and records when the answers arrive.

    Attributes:
        trips_ms: by kind.
        unanswered: of the probes that are counted, those without an answer.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, sources=0)
        self.trips_ms: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self.unanswered = 0
        self._pending: Counter[bool] = Counter()  # probes without an answer yet, by whether they count
        self._counted_from = self._end = 0.0
        self._pools = {
            kind: [_Probe(self, kind, number) for number in range(size)] for kind, size in CONNECTIONS.items()
        }

    def probe(self, settle_s: float, seconds: float) -> None:
        """Probe for some seconds; what was due in the first `settle_s` is not counted."""
        self.connect_all(self.members)
        if not self.run(CONNECT_S, lambda: self.count_logged_in() == len(self.members)):
            raise SystemExit("the probes could not log in")
        started, each = time.monotonic(), 1 / PROBES_PER_S
        self._counted_from, self._end = started + settle_s, started + settle_s + seconds
        self._repeat(started, each, partial(self._ask, ALWAYS))
        self._repeat(started + each / 3, each, partial(self._ask, SELDOM))
        self._repeat(started + each * 2 / 3, each, self._log_in)
        self._repeat(started + 0.002, PLAIN_EVERY_S / CONNECTIONS[SELDOM], self._send_plain)
        self.run(settle_s + seconds)
        self.run(LAST_ANSWERS_S, lambda: not self._pending[True])
        self.unanswered = self._pending[True]
        if self.endings:
            raise SystemExit("the server has closed a probe's connection")

    def asked(self, due: float) -> None:
        self._pending[due >= self._counted_from] += 1

    def answered(self, kind: str, due: float, now: float) -> None:
        self._pending[due >= self._counted_from] -= 1
        if due >= self._counted_from:
            self.trips_ms[kind].append((now - due) * 1000)

    def _repeat(self, due: float, every_s: float, act: Callable[[int, float], None], number: int = 0) -> None:
        """Call `act` at `due` and at intervals until the end."""

        def do() -> None:
            act(number, due)
            self._repeat(due + every_s, every_s, act, number + 1)

        if due < self._end:
            self.call_at(due, do)

    def _ask(self, kind: str, number: int, due: float) -> None:
        pool = self._pools[kind]
        pool[number % len(pool)].ask(due)

    def _log_in(self, number: int, due: float) -> None:
        probe = _Probe(self, LOGIN, number)
        probe.expect_answer(due)
        probe.connect()

    def _send_plain(self, number: int, _due: float) -> None:
        pool = self._pools[SELDOM]
        pool[number % len(pool)].send(KEEPALIVE)


class _Probe(LoopClient):
    """One connection. Answers come in the order of the probes, so each belongs to the oldest one."""

    def __init__(self, prober: Prober, kind: str, number: int) -> None:
        self.is_member = kind != LOGIN
        super().__init__(prober, f"probe-{KINDS.index(kind)}-{number}")
        self.reconnects = False
        self._dues: deque[float] = deque()  # of its probes without an answer
        self._prober, self._kind = prober, kind

    def expect_answer(self, due: float) -> None:
        self._dues.append(due)
        self._prober.asked(due)

    def ask(self, due: float) -> None:
        self.expect_answer(due)
        self.send(KEEPALIVE_WITH_ID)

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        if self._kind == LOGIN:
            self._answered(now)
            self.close()

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        if self._dues:
            self._answered(now)

    def _answered(self, now: float) -> None:
        self._prober.answered(self._kind, self._dues.popleft(), now)


@dataclass
class Probed:
    """The result of a prober; empty until its ``with`` block has ended."""

    trips_ms: dict[str, list[float]] = field(default_factory=dict)
    unanswered: int = 0

    def complaints(self) -> list[str]:
        """Return why the round trips are not valid; empty if they are."""
        answered = sum(map(len, self.trips_ms.values()))
        if self.unanswered <= MISSED_LIMIT * (answered + self.unanswered):
            return []
        return [f"{self.unanswered:,} of {answered + self.unanswered:,} probes stayed unanswered"]


@contextmanager
def probing(host: str, port: int, settle_s: float, seconds: float) -> Iterator[Probed]:
    """Probe a server in a process of its own, during the ``with`` block and until it ends by itself.

    Raises:
        SystemExit: it failed, or does not end.
    """
    words = (host, str(port), str(settle_s), str(seconds))
    probed = Probed()
    prober = subprocess.Popen([sys.executable, "-m", __name__, *words], stdout=subprocess.PIPE, text=True)
    try:
        yield probed
        output, _ = prober.communicate(timeout=settle_s + seconds + CONNECT_S + END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"the prober of {host}:{port} does not end") from None
    finally:
        prober.kill()
        prober.wait()
        if prober.stdout is not None:
            prober.stdout.close()
    if prober.returncode:
        raise SystemExit(f"the prober of {host}:{port} failed")
    found = json.loads(output)
    probed.trips_ms, probed.unanswered = found["trips_ms"], found["unanswered"]


def main() -> None:
    host, port, settle_s, seconds = sys.argv[1:5]
    with Prober((host, int(port))) as prober:
        gc.freeze()
        prober.probe(float(settle_s), float(seconds))
    print(json.dumps({"trips_ms": prober.trips_ms, "unanswered": prober.unanswered}))


if __name__ == "__main__":
    main()
