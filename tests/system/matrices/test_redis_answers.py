"""Every answer by which Redis refuses, for a while each, while users come and go, watch and send messages.

Memory, descriptors, threads and clients of Redis stay flat while it lasts; after it, the server is as before,
and the stream has each visit of each user exactly once.

    python -m tests.system.matrices.test_redis_answers --seconds 600 --only READONLY --visits 0
"""

import argparse
import contextlib
import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pytest

from loadtest.servers import LocalRedis
from presence import protocol
from presence.protocol import Kind
from presence.store.keys import Keys
from tests.support.answers import CLOSED, ERRORS, LATE, AnsweringProxy
from tests.support.line import Line
from tests.support.preloaded import PreloadedServer
from tests.support.process_figures import Figures, figures
from tests.support.waiting import wait_for

ANSWERS: Final = (*ERRORS, CLOSED, LATE)
IN_SMALL: Final = ("READONLY", CLOSED)
FEW_S: Final = 2.5
MINUTE_S: Final = 60.0
RECOVERY_S: Final = 15.0  # a server has to be as before; an idle thread ends after 10 s
VISITORS: Final = 20
VISITS_PER_S: Final = 20.0
REQUESTS_PER_S: Final = 4.0
SAMPLE_S: Final = 0.25
USUAL_S: Final = 3.0
MORE_MEMORY_KB: Final = 1_024  # beside what the pending changes take
BYTES_PER_VISIT: Final = 4_096  # far above what a visit leaves in the outbox
MOST_THREADS: Final = 8
MORE_CLIENTS: Final = 4  # that may be closing, or read bans and answers for a moment


class Visits:
    """Users that come and go, in a thread; in another, one that watches them, and one that sends and queries.

    Attributes:
        granted: logins that were granted, by user.
        failures: what a thread died of.
    """

    def __init__(self, address: tuple[str, int], per_s: float) -> None:
        self._address = address
        self._per_s = per_s
        self._stop = threading.Event()
        self.granted: Counter[str] = Counter()
        self.refused: Counter[int] = Counter()  # requests of the others, by code
        self.failures: list[BaseException] = []
        self._watcher = Line(address, protocol.login("watcher"))
        self._sender = Line(address, protocol.login("sender"))
        self._uids = [f"visitor-{number}" for number in range(VISITORS)]
        assert self._watcher.ask(protocol.watch(self._uids)).kind == Kind.OK
        parts = [self._ask_forever, *([self._visit_forever] if per_s else [])]
        self._threads = [threading.Thread(target=self._run, args=(part,)) for part in parts]
        for thread in self._threads:
            thread.start()

    @property
    def count(self) -> int:
        return sum(self.granted.values())

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for line in (self._watcher, self._sender):
            line.close()
        assert not self.failures, self.failures

    def _run(self, part: Callable[[], None]) -> None:
        try:
            part()
        except BaseException as error:
            self.failures.append(error)

    def _visit_forever(self) -> None:
        for uid in itertools.cycle(self._uids):
            if self._stop.wait(1 / self._per_s):
                return
            self._visit(uid)

    def _ask_forever(self) -> None:
        for number in itertools.count():
            if self._stop.wait(1 / REQUESTS_PER_S):
                return
            self._ask(number, self._uids[number % VISITORS])

    def _visit(self, uid: str) -> None:
        line = Line(self._address, protocol.login(uid))
        if line.answer.kind == Kind.OK:
            self.granted[uid] += 1
            assert line.ask(protocol.logout()).kind == Kind.OK
        line.close()

    def _ask(self, number: int, uid: str) -> None:
        packets = [protocol.message(uid, "hello"), protocol.query([uid]), protocol.watch([uid])]
        line = self._watcher if number % 3 == 2 else self._sender
        with contextlib.suppress(TimeoutError):
            self.refused[line.ask(packets[number % 3]).payload.get("code", 0)] += 1


@dataclass
class Cell:
    """What one answer did."""

    name: str
    answered: int
    before: Figures
    warm: Figures  # after the first half
    end: Figures
    after: Figures
    most: Figures  # the highest of each, while it lasted
    visits: int

    def broken(self) -> list[str]:
        """Return the promises that did not hold."""
        allowed_kb = MORE_MEMORY_KB + self.visits * BYTES_PER_VISIT // 1_024
        return [
            text
            for holds, text in (
                (self.answered > 0, "nothing was answered so"),
                (self.end.rss_kb - self.warm.rss_kb <= allowed_kb, "memory grew"),
                (self.most.threads <= MOST_THREADS, "threads grew"),
                (self.most.clients <= self.before.clients + MORE_CLIENTS, "clients grew"),
                (self.most.descriptors <= self.before.descriptors + 2 * MORE_CLIENTS, "descriptors grew"),
                (self.after.clients <= self.before.clients, "clients stayed"),
                (self.after.descriptors <= self.before.descriptors, "descriptors stayed"),
                (self.after.threads <= self.before.threads, "threads stayed"),
            )
            if not holds
        ]

    def __str__(self) -> str:
        held = ", ".join(self.broken()) or "held"
        grown = self.end.rss_kb - self.warm.rss_kb
        return (
            f"{self.name:12} {self.answered:6} answers, {self.visits:5} visits: {held}; memory {grown:+} kB "
            f"({self.warm.rss_kb} to {self.end.rss_kb}), at most {self.most.threads} threads, "
            f"{self.most.clients} clients, {self.most.descriptors} descriptors; before {self.before[1:]}, "
            f"after {self.after[1:]}"
        )


class Matrix:
    """One server, and a proxy before its Redis; for a ``with`` block."""

    def __init__(self, per_s: float) -> None:
        self._stack = contextlib.ExitStack()
        self.redis = self._stack.enter_context(LocalRedis())
        self.proxy = self._stack.enter_context(AnsweringProxy(self.redis.path))
        flags = ("--redis", self.proxy.url, "--shards", "2", "--lease", "120", "--packet-rate", "1000")
        self.server = self._stack.enter_context(PreloadedServer(*flags))
        self.visits = Visits(self.server.address, per_s)

    def __enter__(self) -> "Matrix":
        return self

    def __exit__(self, *exc_info: object) -> None:
        with contextlib.suppress(AssertionError):
            self.visits.stop()
        self._stack.close()

    def figures(self) -> Figures:
        return figures(self.server.process.pid, self.redis.client)

    def settled(self, at_most: Figures | None = None) -> Figures:
        """Return the figures once they are at most these, or after `RECOVERY_S`."""
        give_up = time.monotonic() + RECOVERY_S
        while True:
            found = self.figures()
            is_so = at_most is None or all(a <= b for a, b in zip(found[1:], at_most[1:], strict=True))
            if is_so or time.monotonic() > give_up:
                return found
            time.sleep(0.1)

    def usual(self) -> Figures:
        """Return the highest figures of some seconds in which nothing is wrong."""
        return highest(self._samples(USUAL_S))

    def _samples(self, seconds: float) -> list[Figures]:
        found: list[Figures] = []
        end_at = time.monotonic() + seconds
        while not found or time.monotonic() < end_at:
            time.sleep(SAMPLE_S)
            found.append(self.figures())
        return found

    def try_one(self, name: str, seconds: float, before: Figures) -> Cell:
        answered, visits = self.proxy.answered, self.visits.count
        self.proxy.answer(name)
        found = self._samples(seconds)
        self.proxy.heal()
        after = self.settled(before)
        tried = self.visits.count - visits
        warm = found[min(len(found) // 2, round(MINUTE_S / SAMPLE_S))]
        return Cell(
            name, self.proxy.answered - answered, before, warm, found[-1], after, highest(found), tried
        )

    def wrong_events(self) -> list[str]:
        """Return the users whose events are not exactly their visits, once all are written."""
        self.visits.stop()
        granted = self.visits.granted

        def written() -> dict[str, list[str]]:
            events: dict[str, list[str]] = {uid: [] for uid in granted}
            for shard in range(2):
                for _, fields in self.redis.client.xrange(Keys(shards=2).events(shard)):
                    uid = fields.get(b"uid", b"").decode()
                    if uid in events:
                        events[uid].append(fields[b"type"].decode())
            return events

        with contextlib.suppress(AssertionError):
            wait_for(lambda: sum(map(len, written().values())) >= 2 * sum(granted.values()))
        return [uid for uid, types in written().items() if types != ["online", "offline"] * granted[uid]]


def highest(found: Sequence[Figures]) -> Figures:
    return Figures(*map(max, zip(*found, strict=True)))


def run(names: Sequence[str], seconds: float, per_s: float = VISITS_PER_S) -> list[str]:
    """Try all answers; print a line for each, and return the promises that did not hold."""
    began, broken = time.monotonic(), []
    with Matrix(per_s) as matrix:
        before = matrix.usual()
        for name in names:
            cell = matrix.try_one(name, seconds, before)
            print(cell, flush=True)
            broken += [f"{name}: {each}" for each in cell.broken()]
        visits = matrix.visits.count
        broken += [f"events of {uid} are not its visits" for uid in matrix.wrong_events()]
        broken += [f"failed: {each}" for each in matrix.server.failures() if "Redis refused" not in each]
        status = matrix.server.stop()
        broken += [f"exit status {status}"] if status else []
    took_s = time.monotonic() - began
    print(f"{len(names)} answers, {visits} visits, {len(broken)} promises broken, {took_s:.0f} s")
    return broken


def test_refusals_cost_nothing_and_lose_no_event() -> None:
    assert run(IN_SMALL, FEW_S) == []


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
def test_long_refusals_cost_nothing_and_lose_no_event() -> None:
    assert run(ANSWERS, MINUTE_S) == []


def main() -> int:
    parser = argparse.ArgumentParser(description="Every answer by which Redis refuses, for a while each.")
    parser.add_argument("--seconds", type=float, default=FEW_S, help="how long each lasts")
    parser.add_argument("--only", choices=ANSWERS, nargs="+", default=ANSWERS, help="which answers")
    parser.add_argument("--visits", type=float, default=VISITS_PER_S, help="per second; 0: none")
    options = parser.parse_args()
    broken = run(options.only, options.seconds, options.visits)
    print(*broken, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
