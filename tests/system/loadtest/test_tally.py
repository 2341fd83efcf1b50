"""What devices report through; under gevent, so in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]

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


def test_the_tally_tells_everything_once_until_it_is_closed() -> None:
    assert run(TALLY) == {"beat": [5, 5, 0, 0], "login": [2, 0, 750.0, 500.0], "total": [7, 5, 750.0, 0]}
