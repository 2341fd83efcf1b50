"""``python -m benchmarks.networks``: what do time-outs give on bad networks?

Phones with a client library, each behind a network of its own (see `networks.lossy_link`): latency,
bandwidth, loss, blackouts, changes of address, translators of addresses that forget connections. For each
setting of T and grace there is a server, and on it ``--phones`` phones on each network, for ``--minutes``. A
phone dies without a word after some minutes, and another takes its place.

Counted are offline events of phones that are alive: after a blackout longer than T less the keepalive
interval, which no server can tell from a death, and otherwise. Of the dead it is measured how long after the
death their offline event is in Redis. A dead phone without such an event, or a network without phones, is not
a figure: the exit status is 1 then. Needs the ``loadtest`` and ``embedded`` extras, and a JDK for phones with
the Java client.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path

from benchmarks.java_clients import build
from benchmarks.networks.lossy_link import NETWORKS
from benchmarks.networks.phone import PhoneRecord
from benchmarks.networks.phone_crowd import play
from benchmarks.networks.verdict import NetworkOutcome, OfflineMoment, TimeoutSetting, failures, judge
from loadtest.arguments import above_0, from_1
from loadtest.outcome import markdown, print_progress
from loadtest.processes import WorkerProcess, exit_on_sigterm
from loadtest.redis_contents import Data
from loadtest.servers import PresenceServer
from presence.store.keys import Keys

SETTINGS = (TimeoutSetting(15, 3), TimeoutSetting(30, 5), TimeoutSetting(60, 15), TimeoutSetting(120, 30))
PROGRESS_S = 30.0
END_TIMEOUT_S = 60.0  # of a process of phones, after their time: then it was stopped
HEAD = (
    *("network", "T / grace / keepalive, s", "hours", "false offline per 100 h"),
    *("offline in a longer blackout, per 100 h", "dead noticed after p50, p99", "returns per hour"),
)


def measure(
    settings: Sequence[TimeoutSetting], phones: int, seconds: float, seed: str, client: str = "python"
) -> dict[TimeoutSetting, dict[str, NetworkOutcome]]:
    """Return the outcome on each network, for each setting.

    Raises:
        SystemExit: a server has ended, or a process of phones, or that does not answer.
    """
    found = {}
    with contextlib.ExitStack() as stack:
        running: list[tuple[TimeoutSetting, Data, PresenceServer, Future[list[PhoneRecord]]]] = []
        for setting in settings:
            data = stack.enter_context(Data())
            flags = [
                "--idle-timeout",
                f"{setting.idle_timeout:g}",
                "--disconnect-grace",
                f"{setting.grace:g}",
            ]
            server = stack.enter_context(PresenceServer("--redis", data.url, *flags))
            process = stack.enter_context(WorkerProcess())
            future = process.submit(play, server.address, phones, seconds, seed, client)
            running.append((setting, data, server, future))
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            print_progress(f"{left_s:.0f} s left")
            time.sleep(min(PROGRESS_S, left_s))
        for setting, data, server, future in running:
            lost = f"the phones of T = {setting.idle_timeout:g} s cannot be judged"
            try:
                records = future.result(END_TIMEOUT_S)
            except (BrokenExecutor, TimeoutError, ChildProcessError) as error:
                raise SystemExit(f"their process is gone: {lost}") from error
            if server.process.poll() is not None:
                raise SystemExit(f"their server is gone: {lost}")
            read_at = time.monotonic()
            events = [
                OfflineMoment(each.uid, each.written_at)
                for each in data.events(Keys("presence", 1))
                if each.type == "offline"
            ]
            found[setting] = judge(records, events, setting, read_at)
    return found


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--phones", type=from_1, default=40, help="on each network, for each setting")
    add("--minutes", type=above_0, default=15.0)
    add("--client", choices=("python", "java"), default="python", help="of the phones")
    add("--seed", default=f"{time.time():.0f}", help="of the networks and the deaths")
    add("--out", type=Path, help="file for the table")
    return parser.parse_args(words)


def main() -> int:
    given = parse()
    print_progress(f"seed {given.seed}")
    rows: dict[str, list[list[str]]] = {each.name: [] for each in NETWORKS}
    broken: list[str] = []
    if given.client == "java":
        build()
    seconds = given.minutes * 60
    for setting, outcomes in measure(SETTINGS, given.phones, seconds, given.seed, given.client).items():
        broken += [f"T = {setting.idle_timeout:g} s, {each}" for each in failures(outcomes, rows)]
        for name, outcome in outcomes.items():
            rows[name].append([name, *outcome.cells(setting)])
    text = markdown(HEAD, [row for name in rows for row in rows[name]])
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    for each in broken:
        print_progress(f"not valid: {each}")
    return 1 if broken else 0


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
