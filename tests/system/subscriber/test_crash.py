"""Workers that die in mid-work, and an event that none can handle: nothing is lost, none is stuck."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.subscriber.streams import Streams
from tests.support.waiting import wait_for

EVENTS = 4_000
DEADLINE_S = 60.0
Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Start]:
    running: list[subprocess.Popen[bytes]] = []

    def start_worker(name: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "tests.subscriber.worker", url, name, str(tmp_path / name)]
        running.append(subprocess.Popen(command))
        return running[-1]

    yield start_worker
    for process in running:
        process.kill()
        process.wait()


def handled(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_one_of_three_workers_is_killed_and_one_event_is_poisoned(
    streams: Streams, start: Start, tmp_path: Path
) -> None:
    streams.create_group()
    ids: list[str] = []
    for first in range(0, EVENTS, 1000):
        ids += streams.write(*(f"user-{n}" for n in range(first, first + 1000)))
        if first == EVENTS // 2:
            streams.write("poison")
    started = time.monotonic()
    killed = start("killed")
    start("w1")
    start("w2")
    wait_for(lambda: len(handled(tmp_path / "killed")) > 500, DEADLINE_S)
    killed.kill()
    left = streams.pending()

    def distinct() -> int:
        return len({each for name in ("killed", "w1", "w2") for each in handled(tmp_path / name)})

    wait_for(lambda: distinct() >= EVENTS and streams.pending() == 0, DEADLINE_S)
    seconds = time.monotonic() - started
    by_worker = {name: handled(tmp_path / name) for name in ("killed", "w1", "w2")}
    times = Counter(each for done in by_worker.values() for each in done)
    doubled = {each for each, count in times.items() if count > 1}
    print(
        f"crash, S = {streams.keys.shards}: {EVENTS} events, 3 workers, 1 killed with {left} pending in all: "
        f"handled {len(times)} distinct, lost {EVENTS - len(times)}, dead letters {len(streams.dead())}, "
        f"doubled {len(doubled)}, of the killed one {len(doubled & set(by_worker['killed']))}; "
        f"{seconds:.1f} s"
    )
    assert min(map(len, by_worker.values())) > 0, "all took part"
    assert {each.partition(" ")[2] for each in times} == set(ids)
    assert doubled <= set(by_worker["killed"])
    assert len(doubled) <= 1, "what it had handled and not acknowledged"
    (letter,) = streams.dead()
    assert (letter["uid"], letter["deliveries"]) == ("poison", "5")
    assert letter["error"] == "PoisonedError: poison"
