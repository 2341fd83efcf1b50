"""``slow``: many watchers that never read, and what they cost the server and those that do read."""

import _socket
import itertools
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from loadtest import usage
from loadtest.checker import id_order
from loadtest.outcome import failed_checks, percentile, print_progress, spread_ms
from loadtest.scenario_report import LoadedServer, ScenarioReport, loaded_server
from presence import protocol
from presence.loadtest.client_loop import ClientLoop, LoopClient
from presence.protocol import Kind
from tests.system.channel.entries import EntryId

PATIENT_SERVER = ("-m", "tests.system.channel.patient_server")
SEGMENT_BYTES = 536  # small segments make small buffers in both kernels
RECEIVE_BYTES = 4096
TEXT = "x" * 200  # a state's meta
LOGIN_S = 60.0
LOGINS_PER_S = 300.0  # each watches immediately, which costs more than a login
UNSENT_BYTES = 65_536  # the setting's default: what may wait for one of them
MAX_MEMORY_SHARE = 1.1
MAX_P99_RATIO = 1.2
POLL_INTERVAL_S = 1.0
CATCH_UP_TIMEOUT_S = 60.0
BEAT_S = 12.0


@dataclass(frozen=True)
class SlowPlan:
    """The size of the run."""

    deaf: int = 2000  # they watch and never read
    others: int = 100  # they read, and are measured
    users: int = 50  # watched by all
    rate: float = 40.0  # changes per second, by turns; the server takes about one per second of each user
    seconds: float = 20.0  # of measuring, without and with the watchers that never read


class Changes:
    """When each change was sent, by number; the number is part of the user's meta."""

    def __init__(self) -> None:
        self.sent: list[float] = []
        self.newest: dict[str, int] = {}

    def next(self, uid: str) -> Mapping[str, Any]:
        """Return a user's next meta, to be sent now."""
        self.newest[uid] = len(self.sent)
        self.sent.append(time.monotonic())
        return {"n": self.newest[uid], "text": TEXT}


class Changer(LoopClient):
    """A watched user who changes; `refused` counts the changes that the server refused."""

    def __init__(self, loop: ClientLoop, uid: str, changes: Changes) -> None:
        super().__init__(loop, uid)
        self.refused = 0
        self._changes = changes

    def change(self) -> None:
        self.send(protocol.encode(protocol.update(id=100, meta=self._changes.next(self.uid))))

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        self.refused += kind == Kind.ERROR


class Viewer(LoopClient):
    """Watches, and knows the newest change of each user.

    Attributes:
        delays: collects the seconds from each change to its push; None: they are not measured.
        seen: by uid, the number of the newest change.
        out_of_order: pushes whose ids do not rise.
    """

    def __init__(self, loop: ClientLoop, uid: str, uids: list[str], changes: Changes) -> None:
        super().__init__(loop, uid)
        self.delays: list[float] | None = None
        self.seen: dict[str, int] = {}
        self.pushes = self.out_of_order = 0
        self.is_answered = False
        self._last: dict[str, EntryId] = {}
        self._uids, self._changes = uids, changes

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        self.send(protocol.encode(protocol.watch(self._uids, id=100)))

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        if kind == Kind.PRESENCE:
            self.pushes += 1
            uid, entry_id = payload["uid"], id_order(payload["id"])
            self.out_of_order += entry_id <= self._last.get(uid, (0, 0))
            self._last[uid] = entry_id
            number = payload.get("meta", {}).get("n", -1)
            self.seen[uid] = number
            if self.delays is not None and number >= 0:
                self.delays.append(now - self._changes.sent[number])
        elif kind == Kind.OK and "presence" in payload:
            self.is_answered = True
            known = {uid: state["meta"]["n"] for uid, state in payload["presence"].items() if "meta" in state}
            self.seen.update(known)


class Deaf(Viewer):
    """Reads until its watch is answered, then nothing until `resume_reading`."""

    def make_socket(self) -> _socket.socket:
        """Keep the kernels from buffering much between server and client."""
        sock = super().make_socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        return sock

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        super().on_packet(kind, id, payload, now)
        if kind == Kind.OK and "presence" in payload:
            self.loop.set_reading(self, on=False)

    def resume_reading(self) -> None:
        self.loop.set_reading(self, on=True)


class SlowRun:
    def __init__(self, plan: SlowPlan, stage: LoadedServer) -> None:
        self._plan, self._loop, self._server = plan, stage.loop, stage.server
        loop = stage.loop
        self._changes = Changes()
        uids = [f"user-{number}" for number in range(plan.users)]
        self._users = [Changer(loop, uid, self._changes) for uid in uids]
        self._turns = itertools.cycle(self._users)
        self._others = [Viewer(loop, f"other-{number}", uids, self._changes) for number in range(plan.others)]
        self._deaf = [Deaf(loop, f"deaf-{number}", uids, self._changes) for number in range(plan.deaf)]
        self._changing = False

    def run(self) -> ScenarioReport:
        """Measure without and with watchers that never read; these read again in the end."""
        plan, loop, deaf = self._plan, self._loop, self._deaf
        is_answered = attrgetter("is_answered")
        loop.log_in(self._users, LOGIN_S, LOGINS_PER_S)
        loop.log_in(self._others, LOGIN_S, LOGINS_PER_S, is_answered)
        without = self._measure()
        loop.log_in(deaf, LOGIN_S, LOGINS_PER_S, is_answered)
        print_progress(f"slow: {len(deaf):,} watch and read no more")
        loop.run(POLL_INTERVAL_S)
        pid, first = self._server.process.pid, len(self._changes.sent)
        before = usage.memory(pid).rss
        usage.forget_peak(pid)
        self._fill_buffers()
        within = self._measure()
        grown = usage.peak_bytes(pid) - before
        print_progress(f"slow: memory grew by {grown / 2**20:.1f} MiB; they wake")
        for each in deaf:
            each.resume_reading()
        newest = self._changes.newest
        loop.run(CATCH_UP_TIMEOUT_S, lambda: all(each.seen == newest for each in deaf))
        changes, bound = len(self._changes.sent) - first, plan.deaf * UNSENT_BYTES
        spared = sum(each.pushes < changes for each in deaf)
        ratio = percentile(within, 0.99) / percentile(without, 0.99)
        report = ScenarioReport(
            f"slow: {plan.deaf:,} watchers that never read, {plan.others} others, {plan.users} users, "
            f"{plan.rate:g} changes/s"
        )
        report.rows = {
            "memory grew by, at its peak": f"{grown / plan.deaf / 1024:.1f} KiB each, "
            f"{grown / bound:.3f} of what may wait ({UNSENT_BYTES // 1024} KiB each)",
            "others' pushes without them": spread_ms(without),
            "others' pushes with them": f"{spread_ms(within)}; p99 {ratio:.2f} times that without them",
            "pushed to each of them in the end": f"{sum(each.pushes for each in deaf) / plan.deaf:,.0f} of "
            f"{changes:,} changes",
            "the load itself": loop.describe_load(),
        }
        report.metrics = {"grown_bytes": grown, "bound_bytes": bound, "p99_ratio": ratio}
        behind = sum(each.seen != newest for each in deaf)
        fallen = sum(each.out_of_order for each in [*deaf, *self._others])
        refused = sum(each.refused for each in self._users)
        report.broken = self._server.failures() + failed_checks(
            (behind, f"{behind} who were deaf do not see the newest states when they read"),
            (spared < len(deaf), f"only {spared} of {len(deaf)} did not read"),
            (fallen, f"ids of {fallen} pushes do not rise"),
            (any(each.seen != newest for each in self._others), "not all who read see the newest states"),
            (refused, f"{refused} changes were refused"),
            (loop.endings, f"connections ended by the server: {dict(loop.endings)}"),
            (grown > MAX_MEMORY_SHARE * bound, f"memory grew by {grown / bound:.2f} of what may wait"),
            (ratio > MAX_P99_RATIO, f"p99 of others {ratio:.2f} times that without them"),
        )
        return report

    def _measure(self) -> list[float]:
        """Return the delays of pushes to watchers that read, while changes go on."""
        delays: list[float] = []
        self._changing = True
        self._change_next(time.monotonic())
        for each in self._others:
            each.delays = delays
        self._loop.run(self._plan.seconds)
        self._changing = False
        self._loop.run(POLL_INTERVAL_S)
        for each in self._others:
            each.delays = None
        return delays

    def _fill_buffers(self) -> None:
        """Send changes, each once the readers have the one before: the server must not fall behind."""
        for _ in range(int(self._plan.rate * self._plan.seconds)):
            started, user = time.monotonic(), next(self._turns)
            user.change()
            self._loop.run(POLL_INTERVAL_S, partial(self._have_newest, user.uid))
            self._loop.run(started + 1 / self._plan.rate - time.monotonic())

    def _have_newest(self, uid: str) -> bool:
        newest = self._changes.newest[uid]
        return all(each.seen.get(uid) == newest for each in (self._others[0], self._others[-1]))

    def _change_next(self, due: float) -> None:
        if self._changing:
            next(self._turns).change()
            due += 1 / self._plan.rate
            self._loop.call_at(due, lambda: self._change_next(due))


def slow(plan: SlowPlan, _seed: int) -> ScenarioReport:
    with loaded_server(beat_s=BEAT_S, program=PATIENT_SERVER) as stage:
        return SlowRun(plan, stage).run()
