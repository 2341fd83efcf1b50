"""What is done to the servers and the Redis of a run while clients go on."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

from loadtest.records import Data
from loadtest.servers import PresenceServer, wait_for

PROOF_S = 15.0  # until a worker that was killed is replaced
AFTER_S = 5.0  # after Redis' return what waited for it is told; not as in calm


class Faults:
    """One after the other, each at its share of the transitions.

    Args:
        kills, restarts: of a worker, and of Redis, by turns.
        transitions: of the whole run.
        away_s: for which Redis is away.

    Attributes:
        proofs: that each took place, in words.
        failed: which did not.
        spans_ms: in which Redis was away or had just come back.
    """

    def __init__(
        self,
        kills: int,
        restarts: int,
        transitions: int,
        away_s: float,
        store: Data,
        serving: PresenceServer,
    ) -> None:
        kinds: list[Callable[[], None]] = []
        for number in range(max(kills, restarts)):
            kinds += [self._kill] * (number < kills) + [self._restart] * (number < restarts)
        self._due = [
            ((number + 1) / (len(kinds) + 1) * transitions, kind) for number, kind in enumerate(kinds)
        ]
        self._away_s, self._store, self._serving = away_s, store, serving
        self._thread: threading.Thread | None = None
        self.proofs: Counter[str] = Counter()
        self.failed: list[str] = []
        self.spans_ms: list[tuple[float, float]] = []

    @property
    def over(self) -> bool:
        """Whether all have been done, and the last is over."""
        return not self._due and not self._is_busy

    @property
    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def inject(self, transitions: int) -> None:
        """Do the next if it is due; in a thread, for the clients go on."""
        if self._due and transitions >= self._due[0][0] and not self._is_busy:
            _, kind = self._due.pop(0)
            self._thread = threading.Thread(target=kind, daemon=True)
            self._thread.start()

    def _kill(self) -> None:
        number, pid = random.choice(sorted(self._serving.workers().items()))
        os.kill(pid, signal.SIGKILL)
        if wait_for(lambda: self._serving.workers()[number] != pid, PROOF_S):
            self.proofs["worker killed (kill -9) and replaced"] += 1
        else:
            self.failed.append("a killed worker was not replaced")

    def _restart(self) -> None:
        begun = time.time() * 1000
        before = str(self._store.client.info("server")["run_id"])
        self._store.kill()
        time.sleep(self._away_s)
        self._store.start()
        self.spans_ms.append((begun, (time.time() + AFTER_S) * 1000))
        if str(self._store.client.info("server")["run_id"]) != before:
            self.proofs[f"Redis killed for {self._away_s:g} s, and back with its data"] += 1
        else:
            self.failed.append("Redis did not restart")
