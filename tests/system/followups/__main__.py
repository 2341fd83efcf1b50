"""``python -m tests.system.followups``: users go offline, some come back, and all is killed meanwhile.

Starts a real server with several workers on a real Redis (append-only file), runners with handlers, and
clients over TCP; kills a worker or a runner each second, all of the server once, and Redis once; then holds
each follow-up against the stream of events and against what the clients did. Prints a table. The exit status
is 1 if a promise was broken. Needs the ``loadtest`` and ``embedded`` extras, and Linux.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from loadtest.checker import TRANSITIONS, id_order
from loadtest.outcome import markdown, percentile, print_progress
from loadtest.redis_contents import Data
from loadtest.servers import PresenceServer, wait_for
from loadtest.stream_events import StreamEvent
from presence import protocol
from presence.loadtest.client_loop import ClientLoop, LoopClient, LoopThread
from presence.loadtest.server_address import raise_file_limit
from presence.store.keys import Keys
from presence.store.redis_client import RedisError
from tests.support.preloaded import PreloadedServer
from tests.system.followups.handler import FOLDER, handled

Position = tuple[int, int]  # an entry id, as ids are ordered
IDLE_S, LEASE_S, GRACE_S = 5.0, 2.0, 1.0
LOGIN_TIMEOUT_S = 60.0
MAX_LATE_S = 15.0  # of a follow-up
PROGRESS_INTERVAL_S = 5.0
POLL_INTERVAL_S = 0.05
QUIET_S = (
    4.0  # after the last: one delivered twice would be close behind, what a killed handler had comes again
)
RETRY_S = 3.0  # until what a killed runner had is handled by another
STOP_TIMEOUT_S = 10.0
PAGE = 2000


class FollowUpEntry(NamedTuple):
    """An entry of the follow-ups; times in ms."""

    position: Position
    id: str
    uid: str
    offline_id: Position
    due_ms: int
    at_ms: int


@dataclass(frozen=True)
class FollowUpsVerdict:
    due_users: set[str]  # users whose last period was long enough: those who get a follow-up in the end
    delivered_users: set[str]  # users who got one
    late_ms: list[int]  # of all that were delivered, in order
    broken: list[str]  # promises, in words


def judge(
    events: Iterable[StreamEvent],
    follow_ups: Sequence[FollowUpEntry],
    *,
    after_ms: int,
    late_max_ms: int,
    now_ms: int,
) -> FollowUpsVerdict:
    """Compare the follow-ups with the events of the one shard.

    An offline period lasts from an offline event to the user's next online event, by the times of Redis in
    their ids. One longer than `after_ms` has one follow-up, a shorter one none; if the user returned within
    the longest lateness allowed, either is right.

    Args:
        late_max_ms: how late a follow-up may be.
        now_ms: when the streams were read.
    """
    by_uid: dict[str, list[StreamEvent]] = defaultdict(list)
    for event in events:
        if event.type in TRANSITIONS:
            by_uid[event.uid].append(event)
    wanted: dict[tuple[str, Position], bool] = {}  # periods that last long enough -> whether for certain
    ends: dict[tuple[str, Position], Position | None] = {}
    due_users = set()
    for uid, each in by_uid.items():
        for event, following in zip(each, [*each[1:], None], strict=True):
            if event.type == "online":
                continue
            begin, end = id_order(event.id), id_order(following.id) if following else None
            length_ms = (end[0] if end else now_ms) - begin[0]
            ends[uid, begin] = end
            if length_ms > after_ms:
                wanted[uid, begin] = length_ms > after_ms + late_max_ms
            if end is None and length_ms > after_ms + late_max_ms:
                due_users.add(uid)
    found = Counter((each.uid, each.offline_id) for each in follow_ups)
    broken = [
        *_broken_line("twice in the stream", [key for key, times in found.items() if times > 1]),
        *_broken_line(
            "ids twice", [each for each, n in Counter(each.id for each in follow_ups).items() if n > 1]
        ),
        *_broken_line("to who came back in time", [key for key in found if key not in wanted]),
        *_broken_line("missing", [key for key, sure in wanted.items() if sure and key not in found]),
        *_broken_line(
            "early",
            [each for each in follow_ups if min(each.at_ms, each.due_ms) < each.offline_id[0] + after_ms],
        ),
        *_broken_line("after the return", [each for each in follow_ups if _is_after(each, ends)]),
    ]
    return FollowUpsVerdict(
        due_users,
        {each.uid for each in follow_ups},
        [each.at_ms - each.due_ms for each in follow_ups],
        broken,
    )


def _is_after(follow_ups: FollowUpEntry, ends: Mapping[tuple[str, Position], Position | None]) -> bool:
    end = ends.get((follow_ups.uid, follow_ups.offline_id))
    return end is not None and follow_ups.position[0] > end[0]


def _broken_line(what: str, some: Sequence[object]) -> list[str]:
    return [f"{len(some)} {what}, such as {some[0]}"] if some else []


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.system.followups", description=__doc__)
    add = parser.add_argument
    add("--users", type=int, default=10_000, help="who go offline")
    add("--back", type=int, default=4000, help="how many of them come back in time")
    add("--after", type=float, default=25.0, help="of the rule, seconds")
    add("--workers", type=int, default=3, help="of the server")
    add("--runners", type=int, default=2, help="processes of presence followups run")
    add("--kill-every", type=float, default=1.0, help="seconds between two kills; 0: nobody is killed")
    add("--spare", action="store_true", help="the server as a whole and Redis are not killed")
    add("--seed", type=int, default=1, help="of who is killed")
    add("--out", type=Path, help="file to write the table to")
    return parser.parse_args(words)


class Runners:
    """Several ``presence followups run``; killed ones are replaced."""

    def __init__(self, url: str, config: Path, folder: Path, count: int) -> None:
        self._command = [
            *(sys.executable, "-m", "presence", "followups", "run", "--redis", url, "--config", str(config)),
            *("--handler", "tests.system.followups.handler:handle", "--retry", str(RETRY_S)),
        ]
        self._environment = {**os.environ, FOLDER: str(folder)}
        self._running = [self._start() for _ in range(count)]

    def _start(self) -> "subprocess.Popen[bytes]":
        nowhere = subprocess.DEVNULL
        return subprocess.Popen(self._command, env=self._environment, stdin=nowhere, stderr=nowhere)

    def restart_ended(self) -> None:
        """Replace runners that have ended, as those do that start while Redis is unreachable."""
        self._running = [each if each.poll() is None else self._start() for each in self._running]

    def kill(self, chance: random.Random) -> None:
        """Kill one runner and start another."""
        place = chance.randrange(len(self._running))
        self._running[place].kill()
        self._running[place].wait()
        self._running[place] = self._start()

    def stop(self) -> None:
        for each in self._running:
            each.terminate()
        for each in self._running:
            try:
                each.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()


class FollowUpsRun:
    """The server, the Redis and the runners; `kills` counts the killed processes by kind."""

    def __init__(self, given: argparse.Namespace, folder: Path, stack: contextlib.ExitStack) -> None:
        self._options = given
        self._config = folder / "presence.toml"
        self._config.write_text(f'[[followups]]\nname = "back"\nafter = {given.after}\npayload = "x"\n')
        self._random = random.Random(given.seed)
        self.handled = folder / "handled"
        self.handled.mkdir()
        self.redis = stack.enter_context(Data(keep=True))
        self.server = self._serve(0)
        stack.callback(lambda: self.server.stop())  # noqa: PLW0108 - of the server that there is then
        self.runners = Runners(self.redis.url, self._config, self.handled, given.runners)
        stack.callback(self.runners.stop)
        self.kills: Counter[str] = Counter()

    def _serve(self, port: int) -> PresenceServer:
        flags = (
            *("--config", str(self._config), "--workers", str(self._options.workers), "--shards", "1"),
            *("--idle-timeout", f"{IDLE_S}", "--lease", f"{LEASE_S}", "--tick", "0.5"),
            *("--disconnect-grace", f"{GRACE_S}"),
        )
        return PreloadedServer("--redis", self.redis.url, *flags, port=port)

    def kill_one(self) -> None:
        workers = sorted(self.server.workers().values())
        if self._random.random() < 0.5 and workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(workers), signal.SIGKILL)
                self.kills["workers"] += 1
        else:
            self.runners.kill(self._random)
            self.kills["runners"] += 1

    def kill_server(self) -> None:
        """Kill all processes of the server, and start it again on the same port."""
        for pid in (self.server.process.pid, *self.server.workers().values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.server.process.wait()
        self.kills["servers"] += 1
        self.server = self._serve(self.server.address[1])

    def kill_redis(self) -> None:
        """Kill Redis, and restart it from its append-only file."""
        self.redis.kill()
        time.sleep(0.5)
        self.redis.start()
        self.kills["Redis"] += 1

    def delivered_count(self) -> int:
        """Return how many follow-ups are in the stream; -1 while Redis is unreachable."""
        try:
            return int(self.redis.client.xlen(Keys().followups(0)))
        except RedisError:
            return -1

    def delivered(self) -> Iterator[FollowUpEntry]:
        begin = "-"
        while page := self.redis.client.xrange(Keys().followups(0), begin, "+", count=PAGE):
            for entry_id, fields in page:
                yield FollowUpEntry(
                    id_order(entry_id.decode()),
                    fields[b"id"].decode(),
                    fields[b"uid"].decode(),
                    id_order((fields[b"offline_id"] or b"0-0").decode()),
                    int(fields[b"due_ms"]),
                    int(fields[b"at_ms"]),
                )
            begin = f"({page[-1][0].decode()}"

    def kill_until_delivered(self, gone: float, stayers: int) -> None:
        """Kill processes until the last follow-up is delivered and handled, or it is too late."""
        after_s, every_s = self._options.after, self._options.kill_every
        latest = gone + IDLE_S + LEASE_S + IDLE_S + after_s + MAX_LATE_S
        acts = [
            (gone + 0.6 * after_s, self.kill_server),
            (gone + after_s + IDLE_S / 2, self.kill_redis),  # some are delivered, others are not yet
        ]
        if self._options.spare:
            acts.clear()
        next_kill, next_word = time.monotonic() + every_s, 0.0
        while time.monotonic() < latest and not (self.delivered_count() >= stayers and not acts):
            now = time.monotonic()
            if acts and now >= acts[0][0]:
                acts.pop(0)[1]()
            elif every_s and now >= next_kill:
                self.kill_one()
                next_kill = now + every_s
            self.runners.restart_ended()
            if now >= next_word:
                count = self.delivered_count()
                print_progress(
                    f"followups: {now - gone:.0f} s, delivered {count:,}, killed {dict(self.kills)}"
                )
                next_word = now + PROGRESS_INTERVAL_S
            time.sleep(POLL_INTERVAL_S)
        wait_for(lambda: len({*handled(self.handled)}) >= self.delivered_count(), MAX_LATE_S, poll_s=0.5)


def play(given: argparse.Namespace, folder: Path) -> tuple[str, list[str]]:
    """Play and judge; return the result as a table, and the broken promises."""
    stayers = given.users - given.back
    with contextlib.ExitStack() as stack:
        stage = FollowUpsRun(given, folder, stack)
        loop = ClientLoop(stage.server.address, beat_s=0.4 * IDLE_S)
        stay = [LoopClient(loop, f"stay-{number}") for number in range(stayers)]
        back = [LoopClient(loop, f"back-{number}") for number in range(given.back)]
        thread = stack.enter_context(LoopThread(loop))
        thread.connect_all([*stay, *back], 2000.0, LOGIN_TIMEOUT_S)
        time.sleep(1.0)
        print_progress(
            f"followups: {given.users:,} users are online; all go, {given.back:,} come back in time"
        )
        gone = time.monotonic()
        thread.call(lambda: _disconnect_all(given.after, loop, stay, back))
        stage.kill_until_delivered(gone, stayers)
        time.sleep(QUIET_S)
        follow_ups, events = [*stage.delivered()], stage.redis.events(Keys())
        seconds, _ = stage.redis.client.time()
        after_ms, late_ms = round(given.after * 1000), round(MAX_LATE_S * 1000)
        verdict = judge(events, follow_ups, after_ms=after_ms, late_max_ms=late_ms, now_ms=seconds * 1000)
        calls = handled(stage.handled)
        broken = [
            *verdict.broken,
            *stage.server.failures(),
            *_check_users({each.uid for each in stay}, follow_ups, calls),
        ]
    rows = {
        "users who go, and are back in time": f"{given.users:,}, {given.back:,}",
        "kill -9": dict(stage.kills),
        "follow-ups in the stream": f"{len(follow_ups):,}",
        "handled, by id, and again": f"{len({*calls}):,}, {len(calls) - len({*calls})}",
        "ms after due: p50 / p99 / max": " / ".join(
            f"{percentile(verdict.late_ms, share):.0f}" for share in (0.5, 0.99, 1.0)
        ),
        "promises": "; ".join(broken) or "kept",
    }
    return markdown("follow-ups | ", rows.items()), broken


def _disconnect_all(after_s: float, loop: ClientLoop, stay: list[LoopClient], back: list[LoopClient]) -> None:
    """Disconnect all by silence, logout or reset; those in `back` return in time."""
    for number, client in enumerate(stay):
        client.reconnects = client.sends_keepalives = False
        if number % 2:
            client.send(protocol.encode(protocol.logout()))
    for client in back:
        client.close(reset=True)
        loop.call_at(time.monotonic() + random.uniform(0.2 * after_s, 0.4 * after_s), client.connect)


def _check_users(wanted: set[str], follow_ups: list[FollowUpEntry], calls: list[str]) -> Iterator[str]:
    """Compare the follow-ups with what the clients meant to do."""
    times = Counter(each.uid for each in follow_ups)
    if missing := wanted - {*times}:
        yield f"{len(missing)} who stayed away got none"
    if others := {*times} - wanted:
        yield f"{len(others)} who came back got one: {sorted(others)[:3]}"
    if max(times.values(), default=0) > 1:
        yield f"{max(times.values())} follow-ups of one user"
    if {*calls} != {each.id for each in follow_ups}:
        yield "handled are others than delivered"


def main(words: list[str] | None = None) -> int:
    given = parse(words)
    raise_file_limit()
    with tempfile.TemporaryDirectory(prefix="followups-") as folder:
        text, broken = play(given, Path(folder))
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    for each in broken:
        print_progress(f"  {each}")
    print("tests.system.followups: " + ("FAILED" if broken else "passed"))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
