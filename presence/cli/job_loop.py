"""Runs a job in a loop until a command ends.

Tests: `tests/cli/test_followups.py`, `tests/cli/test_rooms.py`.
"""

import contextlib
import threading

from presence.common.outage import Outage
from presence.store.shard_job import RETRY_MAX_S, ShardJob


def run_job(job: ShardJob, outage: Outage, stop: threading.Event) -> None:
    """Run a job until `stop` is set; an error of any kind is logged, and it goes on after a pause."""
    wait_s = 0.0
    failure: Exception | None
    while not stop.wait(wait_s):
        try:
            wait_s, failure = job.run_once(), job.failure
        except Exception as error:  # such as a lack of memory: the thread would end unnoticed
            wait_s, failure = RETRY_MAX_S, error
        with contextlib.suppress(OSError, MemoryError):  # as of a log on a full disk
            if failure is None:
                outage.worked("run")
            else:
                outage.failed("run", failure)
