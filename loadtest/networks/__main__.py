"""``python -m loadtest.networks``: what do time-outs give on bad networks?

Phones with the Python client library, each behind a network of its own (see `networks.link`): latency,
bandwidth, loss, blackouts, changes of address, translators of addresses that forget connections. For each
setting of T and grace there is a server, and on it ``--phones`` phones on each network, for ``--minutes``. A
phone dies without a word after some minutes, and another takes its place.

Counted are offline events of phones that are alive: after a blackout longer than T less the keepalive
interval, which no server can tell from a death, and otherwise. Of the dead it is measured how long after the
death their offline event is in Redis. Needs the ``loadtest`` and ``embedded`` extras.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from loadtest.networks.crowd import play
from loadtest.networks.link import NETWORKS
from loadtest.networks.phone import PhoneRecord
from loadtest.networks.verdict import OfflineMoment, TimeoutSetting, judge
from loadtest.outcome import markdown, print_progress
from loadtest.records import Data
from loadtest.servers import PresenceServer
from presence.store.keys import Keys

SETTINGS = (TimeoutSetting(15, 3), TimeoutSetting(30, 5), TimeoutSetting(60, 15), TimeoutSetting(120, 30))
PROGRESS_S = 30.0
HEAD = (
    *("network", "T / grace / keepalive, s", "hours", "false offline per 100 h"),
    *("offline in a longer blackout, per 100 h", "dead noticed after p50, p99", "returns per hour"),
)


def measure(
    settings: Sequence[TimeoutSetting], phones: int, seconds: float, seed: str
) -> dict[TimeoutSetting, tuple[list[PhoneRecord], list[OfflineMoment]]]:
    """Return, for each setting, what became of the phones, and the offline events."""
    found = {}
    with contextlib.ExitStack() as stack:
        workers = stack.enter_context(ProcessPoolExecutor(len(settings), get_context("spawn")))
        running: list[tuple[TimeoutSetting, Data, Future[list[PhoneRecord]]]] = []
        for setting in settings:
            data = stack.enter_context(Data())
            flags = [
                "--idle-timeout",
                f"{setting.idle_timeout:g}",
                "--disconnect-grace",
                f"{setting.grace:g}",
            ]
            server = stack.enter_context(PresenceServer("--redis", data.url, *flags))
            future = workers.submit(play, server.address, phones, seconds, seed)
            running.append((setting, data, future))
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            print_progress(f"{left_s:.0f} s left")
            time.sleep(min(PROGRESS_S, left_s))
        for setting, data, future in running:
            records = future.result()
            events = [
                OfflineMoment(each.uid, each.written_at)
                for each in data.events(Keys("presence", 1))
                if each.type == "offline"
            ]
            found[setting] = (records, events)
    return found


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.networks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--phones", type=int, default=40, help="on each network, for each setting")
    add("--minutes", type=float, default=15.0)
    add("--seed", default=f"{time.time():.0f}", help="of the networks and the deaths")
    add("--out", type=Path, help="file for the table")
    return parser.parse_args(words)


def main() -> int:
    given = parse()
    print_progress(f"seed {given.seed}")
    rows: dict[str, list[list[str]]] = {each.name: [] for each in NETWORKS}
    for setting, (records, events) in measure(SETTINGS, given.phones, given.minutes * 60, given.seed).items():
        for name, outcome in judge(records, events, setting).items():
            rows[name].append([name, *outcome.cells(setting)])
    text = markdown(HEAD, [row for name in rows for row in rows[name]])
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
