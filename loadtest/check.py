"""``python -m loadtest.check``: the load test as a check, and proof that it would notice a fault.

First a server with T = 10 s and a Redis of its own, under 2,000 devices for three minutes: no failure, and
enough silences for that to mean something. Then the negative control: a server without its stall guard
(`loadtest.unguarded`) is stopped and continued while all devices send keepalives, and the load test must
report false offline events and exit with 1. The exit status is 0 if both ended as they must. Needs the
``loadtest`` and ``embedded`` extras.
"""

import argparse
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

from loadtest.arguments import above_0, from_1
from loadtest.processes import LocustFailed, exit_on_sigterm, run_locust
from loadtest.servers import PresenceServer
from loadtest.unguarded import WITHOUT_STALL_GUARD

# The negative control. Which comes first when a stopped server wakes, its tick or its reads, is chance (a
# third of the stops ends all sessions), so a short time-out lets many stops fit into a short run.
CONTROL_T_S = 1.0
CONTROL_TICK_S = 0.25
CONTROL_STOP_S = 1.2  # longer than T: every device is due when the server wakes
CONTROL_AWAKE_S = 0.5  # between two stops: a keepalive of every device
CONTROL_SECONDS = 10.0
CONTROL_RUNS = 6  # at most
CONTROL_USERS = 400  # at most
DETECTED_MIN = 0.01  # silences found, for each device and idle time-out of the run; fewer prove nothing


@contextlib.contextmanager
def stopping(process: "subprocess.Popen[str]", after_s: float) -> Iterator[Callable[[], int]]:
    """Stop and continue a process repeatedly, after some seconds; yields a count of the stops."""
    finished = threading.Event()
    stops = 0

    def run() -> None:
        nonlocal stops
        pause_s = after_s
        while not finished.wait(pause_s):
            process.send_signal(signal.SIGSTOP)
            time.sleep(CONTROL_STOP_S)
            process.send_signal(signal.SIGCONT)
            stops += 1
            pause_s = CONTROL_AWAKE_S

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: stops
    finally:
        finished.set()
        thread.join()


def check_run(arguments: argparse.Namespace) -> bool:
    """The load: no failure, no error in the server, and enough silences for that to mean something."""
    t, flags = arguments.idle_timeout, ("--processes", str(arguments.processes))
    workers = ("--workers", str(arguments.workers))
    with PresenceServer("--idle-timeout", str(t), *workers, forward_errors=True) as server:
        report = run_locust(
            server.host,
            server.redis_url,
            *(flags if arguments.processes > 1 else ()),
            users=arguments.users,
            seconds=arguments.seconds,
        )
        errors = server.failures()
    names = ("online", "offline idle_timeout", "offline closed", "offline logout")
    counts = {name: report.row(name).requests for name in names}
    found, beyond = counts["offline idle_timeout"], report.row("offline idle_timeout, beyond what was due")
    print(
        f"loadtest.check: {arguments.users:,} devices, {arguments.workers} workers, "
        f"{arguments.seconds:.0f} s, T = {t:g} s: events {counts}; silences, beyond T "
        f"p50 {beyond.median:.0f} ms, p99 {beyond.p99:.0f} ms, max {beyond.max:.0f} ms; "
        f"failures {report.failures}, exit status {report.status}"
    )
    enough = arguments.users * arguments.seconds / t * DETECTED_MIN
    if found < enough:
        print(f"too few silences to show anything: fewer than {enough:.0f}")
    for error in errors:
        print(f"error in the server: {error}")
    return report.status == 0 and not report.failures and found >= enough and not errors


def check_control(users: int) -> bool:
    """The negative control: keepalives only, the guard is off, the server is stopped; it must be noticed."""
    flags = ("--idle-timeout", str(CONTROL_T_S), "--tick", str(CONTROL_TICK_S))
    # The devices only send keepalives, and nothing is too late: what is left are false offline events.
    beats = ("--silence-share", "0", "--away-share", "0", "--logout-share", "0", "--slack", "600")
    for number in range(1, CONTROL_RUNS + 1):
        with (
            PresenceServer(*flags, program=WITHOUT_STALL_GUARD, forward_errors=True) as server,
            stopping(server.process, CONTROL_SECONDS / 3) as stops,
        ):
            report = run_locust(server.host, server.redis_url, *beats, users=users, seconds=CONTROL_SECONDS)
        false = report.broken["offline event for a live device"]
        print(
            f"loadtest.check: negative control, run {number}: stall guard off, T = {CONTROL_T_S:g} s, "
            f"{stops()} stops of {CONTROL_STOP_S:g} s: {false:,} false offline events of {users:,} devices "
            f"that beat; failures {report.failures}, exit status {report.status}"
        )
        if false:
            return report.status != 0
    return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.check", description=__doc__)
    parser.add_argument("--users", type=from_1, default=2000, help="devices")
    parser.add_argument(
        "--seconds", type=above_0, default=180.0, help="of the run; the control has its own measures"
    )
    parser.add_argument("--idle-timeout", type=above_0, default=10.0, help="T, seconds")
    parser.add_argument("--workers", type=from_1, default=1, help="of the server")
    parser.add_argument("--processes", type=from_1, default=1, help="of the load generator")
    parser.add_argument("--only", choices=["run", "control"], help="leave the other out")
    arguments = parser.parse_args()
    passed = True
    try:
        if arguments.only != "control":
            passed = check_run(arguments)
        if arguments.only != "run":
            passed = check_control(min(arguments.users, CONTROL_USERS)) and passed
    except LocustFailed as error:
        print(f"loadtest.check: {error}")
        passed = False
    print("loadtest.check: " + ("passed" if passed else "FAILED"))
    return 0 if passed else 1


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
