"""What devices wait with and report through; under gevent, so in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]

WAITS = """
import gevent, json, os, time
from loadtest.waits import GATHER_S, Waits
waits, told = Waits(), {}
def device(name, fd, *untils):
    wait, begun = waits.waiting(fd), time.monotonic()
    told[name] = [(wait.readable(begun + s), time.monotonic() - begun) for s in untils]
    wait.end()
reader, writer = os.pipe()
quiet, _ = os.pipe()
devices = [gevent.spawn(device, "late", quiet, 0.3, 0.1), gevent.spawn(device, "read", reader, 9.0)]
devices.append(gevent.spawn(device, "killed", os.pipe()[0], 0.2))
gevent.sleep(0.05)
devices.append(gevent.spawn(device, "sooner", os.pipe()[0], 0.02))
os.write(writer, b"x")
devices[2].kill()
gevent.joinall(devices)
print(json.dumps(told | {"gather": GATHER_S}))
"""

TALLY = """
import json
from locust.stats import RequestStats
from loadtest.tally import Tally
stats = RequestStats()
tally = Tally(stats, "device")
for _ in range(3):
    tally.count("beat")
tally.took("login", 0.25)
tally.flush()
tally.count("beat", 2)
tally.took("login", 0.75)
tally.close()
tally.count("beat")
tally.flush()
rows = {name: [row.num_requests, row.num_none_requests, row.max_response_time, row.avg_response_time]
        for (name, kind), row in stats.entries.items()}
total = stats.total
print(json.dumps(rows | {"total": [total.num_requests, total.num_none_requests, total.max_response_time, 0]}))
"""


def run(code: str) -> dict[str, Any]:
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


@pytest.mark.alone
def test_devices_wait_for_data_and_for_moments_side_by_side() -> None:
    told = run(WAITS)
    late = told["gather"] + 0.1  # a busy machine
    assert "killed" not in told
    (was_readable, at) = told["read"][0]
    assert was_readable
    assert 0.05 <= at < 0.05 + late
    for name, moments in (("late", (0.3, 0.3)), ("sooner", (0.02,))):
        for (was_readable, at), moment in zip(told[name], moments, strict=True):
            assert not was_readable
            assert moment <= at < moment + late


def test_the_tally_tells_everything_once_until_it_is_closed() -> None:
    assert run(TALLY) == {"beat": [5, 5, 0, 0], "login": [2, 0, 750.0, 500.0], "total": [7, 5, 750.0, 0]}
