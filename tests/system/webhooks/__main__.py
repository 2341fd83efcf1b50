"""``python -m tests.system.webhooks``: events reach a receiver that fails, hangs and is killed.

Two runners send the events of all shards. One of them is killed (SIGKILL) in the middle, the receiver three
times. Each event must be accepted, those of a user in order, and twice only what was in a request under way
when a process was killed. The exit status is 1 if not.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.outcome import print_progress
from loadtest.servers import free_port
from presence.store.embedded import embedded_redis
from presence.store.redis_client import Redis, open_client
from presence.subscriber.events import id_order
from tests.subscriber.streams import Streams

SECRET = "a secret of the test"
USERS = 2000
FAIL_SHARE, HANG_SHARE = 0.1, 0.01
TIMEOUT_S = 1.0
CHUNK = 1000
PROGRESS_S, POLL_S = 5.0, 0.2
GROUP = "webhooks"


@dataclass(frozen=True)
class Verdict:
    """What the receiver has accepted, held against what was written."""

    written: int
    lost: int
    out_of_order: int
    doubled: int
    most_doubled: int  # the most events that can have been in requests under way at the kills
    seconds: float

    @property
    def broken(self) -> list[str]:
        return [
            *([f"{self.lost} lost"] if self.lost else []),
            *([f"{self.out_of_order} out of order"] if self.out_of_order else []),
            *([f"{self.doubled} doubled"] if self.doubled > self.most_doubled else []),
        ]


def run(events: int, shards: int, batch: int) -> Verdict:
    """Run the scenario with so many events."""
    with tempfile.TemporaryDirectory() as folder, embedded_redis() as redis, open_client(redis.url) as client:
        log, secret = Path(folder) / "accepted", Path(folder) / "secret"
        log.touch()
        secret.touch(mode=0o600)
        secret.write_text(SECRET)
        streams = Streams(client, shards)
        port = free_port()
        receiver = [sys.executable, "-m", "tests.support.webhook_receiver", "--port", str(port)]
        receiver += ["--secret", SECRET, "--log", str(log), "--hang-s", str(TIMEOUT_S * 2)]
        receiver += ["--fail", str(FAIL_SHARE), "--hang", str(HANG_SHARE)]
        runner = [sys.executable, "-m", "presence", "webhooks", "run", "--url", f"http://127.0.0.1:{port}/"]
        runner += ["--secret-file", str(secret), "--batch", str(batch), "--timeout", str(TIMEOUT_S)]
        runner += ["--after", "0", "--redis", redis.url, "--group", GROUP]
        receiving = subprocess.Popen(receiver)
        runners = [subprocess.Popen(runner) for _ in range(2)]
        begun, written, kills = time.monotonic(), 0, 0
        next_line = begun + PROGRESS_S
        chance = random.Random(25)
        try:
            due = [events // 5, 2 * events // 5, 4 * events // 5]  # when the receiver is killed
            runner_due = 3 * events // 5
            while True:
                if written < events:
                    some = min(CHUNK, events - written)
                    streams.write(*(f"u{chance.randrange(USERS)}" for _ in range(some)))
                    written += some
                accepted = len(_accepted(log))
                if due and accepted >= due[0]:
                    due.pop(0)
                    receiving.kill()
                    receiving.wait()
                    time.sleep(0.5)
                    receiving = subprocess.Popen(receiver)
                    kills += 1
                if runner_due and accepted >= runner_due:
                    runner_due = 0
                    runners[0].kill()
                    kills += 1
                if accepted >= events and not due and not runner_due and not _pending(streams):
                    break
                assert runners[1].poll() is None, "the other runner has ended"
                if time.monotonic() >= next_line:
                    next_line += PROGRESS_S
                    print_progress(f"{time.monotonic() - begun:.0f} s: accepted {accepted:,} of {written:,}")
                time.sleep(POLL_S)
            runners[1].send_signal(signal.SIGTERM)
            assert runners[1].wait(10) == 0
        finally:
            for process in (receiving, *runners):
                process.kill()
                process.wait()
        return _judge(streams, _accepted(log), kills * shards * batch, time.monotonic() - begun)


def _accepted(log: Path) -> list[tuple[int, str, str]]:
    lines = log.read_text().splitlines()
    return [tuple(event) for line in lines for event in json.loads(line)]


def _pending(streams: Streams) -> int:
    found = 0
    for shard in range(streams.keys.shards):
        for group in streams.client.xinfo_groups(streams.keys.events(shard)):
            found += group["pending"] + (group["lag"] or 0)
    return found


def _entry_ids(client: Redis, stream: str) -> list[str]:
    answer: Any = client.xrange(stream)
    return [entry_id.decode() for entry_id, _ in answer]


def _judge(
    streams: Streams, accepted: list[tuple[int, str, str]], most_doubled: int, seconds: float
) -> Verdict:
    written = {
        (shard, entry_id)
        for shard in range(streams.keys.shards)
        for entry_id in _entry_ids(streams.client, streams.keys.events(shard))
    }
    counts = Counter((shard, entry_id) for shard, entry_id, _ in accepted)
    last: dict[str, tuple[int, int]] = {}
    seen: set[tuple[int, str]] = set()
    out_of_order = 0
    for shard, entry_id, uid in accepted:
        if (shard, entry_id) in seen:
            continue
        seen.add((shard, entry_id))
        out_of_order += id_order(entry_id) < last.get(uid, (0, 0))
        last[uid] = id_order(entry_id)
    doubled = sum(count - 1 for count in counts.values())
    return Verdict(len(written), len(written - seen), out_of_order, doubled, most_doubled, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--batch", type=int, default=20)
    options = parser.parse_args()
    verdict = run(options.events, options.shards, options.batch)
    print(verdict)
    print("broken: " + "; ".join(verdict.broken) if verdict.broken else "kept")
    return bool(verdict.broken)


if __name__ == "__main__":
    sys.exit(main())
