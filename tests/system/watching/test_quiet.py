"""Quiet clients of a real server, under churn: after each end of quiet, a query shows what they were told."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest

from presence import protocol
from presence.protocol import Kind, Packet
from tests.support.line import Line
from tests.support.preloaded import PreloadedServer

USERS = [f"user-{number}" for number in range(100)]
WATCHERS = 30
CHANGES_PER_S = 25.0  # so a user changes every four seconds: a lost change is not hidden by the next one
UPDATES = 10  # of one session, before the server refuses more for a second
ARRIVAL_S = 1.0  # of an event, from Redis to the worker, on a busy machine
FLAGS = "--workers", "2", "--packet-rate", "2000", "--disconnect-grace", "0", "--idle-timeout", "600"


class Watcher:
    """A client that is quiet now and then.

    Attributes:
        counts: what it has done and found.
    """

    def __init__(self, address: tuple[str, int], uid: str, seed: int) -> None:
        self._address, self._uid, self._random = address, uid, Random(seed)
        self._line: Line | None = None
        self._view: dict[str, tuple[tuple[int, int], str]] = {}  # entry id and status
        self._updates = 0
        self.counts = Counter[str]()

    def play(self, moments: int) -> None:
        while self.counts["moments"] < moments:
            try:
                line = self._log_in() if self._line is None or self._updates > UPDATES - 2 else self._line
                self._be_quiet(line)
            except ConnectionError:  # two workers had a session of the device, begun at about the same time
                self.close()
                self.counts["closed"] += 1

    def _be_quiet(self, line: Line) -> None:
        self._update(line, is_quiet=True)
        before = self._ids()
        time.sleep(self._random.uniform(0.0, 0.3))
        assert self._read(line) == 0, "a quiet client is not told of changes"
        if self._random.random() < 0.2:
            line.ask(protocol.keepalive())  # brings what is held, and the session stays quiet
            self._read(line, wait_s=0.05)
            self.counts["brought by a keepalive"] += self._ids() != before
            before = self._ids()
        if self._random.random() < 0.1:
            line = self._log_in()
        else:
            self._update(line, is_quiet=False)
        self._compare(line)
        self.counts["changed meanwhile"] += self._ids() != before
        self.counts["moments"] += 1

    def _ids(self) -> list[tuple[int, int]]:
        return [id for id, _ in self._view.values()]

    def _update(self, line: Line, *, is_quiet: bool) -> None:
        self._updates += 1
        assert line.ask(protocol.update(quiet=is_quiet)).kind == Kind.OK
        if is_quiet:
            self._read(line, wait_s=0.02)  # what was on its way before

    def _log_in(self) -> Line:
        """Log in, not quiet, in place of the connection before."""
        self.close()
        self._line = line = Line(self._address, protocol.login(self._uid))
        states = line.ask(protocol.watch(USERS)).payload["presence"]
        self._view = {uid: _seen(state) for uid, state in states.items()}
        self._updates = 0
        return line

    def _read(self, line: Line, wait_s: float = 0.001) -> int:
        """Apply what was pushed; return how many packets."""
        pushed = line.gather(wait_s)
        for packet in pushed:
            if packet.kind == Kind.GOODBYE:
                raise ConnectionError(packet)
            uid, seen = packet.payload["uid"], _seen(packet.payload)
            assert seen[0] > self._view[uid][0], "changes are in order, and none comes twice"
            self._view[uid] = seen
        return len(pushed)

    def _compare(self, line: Line) -> None:
        """The view is what a query shows, or becomes so as soon as the worker has the latest events."""
        self._read(line)
        states = self._states(line.ask(protocol.query(USERS)))
        until = time.monotonic() + ARRIVAL_S
        while behind := [uid for uid, seen in states.items() if seen[0] > self._view[uid][0]]:
            assert time.monotonic() < until, f"lost: {behind}"
            self._read(line, wait_s=0.01)
            self.counts["waited for"] += 1
        same = [uid for uid, seen in states.items() if seen[0] == self._view[uid][0]]
        assert all(states[uid] == self._view[uid] for uid in same)
        self.counts["states compared"] += len(same)

    @staticmethod
    def _states(answer: Packet) -> dict[str, tuple[tuple[int, int], str]]:
        assert answer.kind == Kind.OK, answer
        return {uid: _seen(state) for uid, state in answer.payload["presence"].items()}

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


def _seen(state: dict[str, Any] | Any) -> tuple[tuple[int, int], str]:
    first, _, second = (state["id"] or "0-0").partition("-")
    return (int(first), int(second)), state["status"]


def churn(address: tuple[str, int], is_over: threading.Event) -> None:
    """Let users come, go and change their status, each at most once per second, until it is over."""
    chance, lines = Random(5), dict[str, Line]()
    while not is_over.is_set():
        time.sleep(chance.expovariate(CHANGES_PER_S))
        uid = chance.choice(USERS)
        if uid not in lines:
            lines[uid] = Line(address, protocol.login(uid))
        elif chance.random() < 0.5:
            lines.pop(uid).close()
        else:
            lines[uid].ask(protocol.update(status=chance.choice(("away", "busy", "online"))))
    for line in lines.values():
        line.close()


@pytest.mark.parametrize("moments", [600, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_after_each_end_of_quiet_what_a_client_was_told_is_what_a_query_shows(moments: int) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(PreloadedServer(*FLAGS))
        is_over = threading.Event()
        pool = stack.enter_context(ThreadPoolExecutor(WATCHERS + 1))
        stack.callback(is_over.set)
        churning = pool.submit(churn, server.address, is_over)
        watchers = [Watcher(server.address, f"watcher-{number}", number) for number in range(WATCHERS)]
        for each in watchers:
            stack.callback(each.close)
        for future in [pool.submit(each.play, -(-moments // WATCHERS)) for each in watchers]:
            future.result()
        is_over.set()
        churning.result()
    counts = sum((each.counts for each in watchers), Counter[str]())
    print(dict(counts))
    assert counts["moments"] >= moments
    assert counts["changed meanwhile"] > moments / 2
    assert counts["brought by a keepalive"] > 0
    assert counts["closed"] <= moments / 100
