"""``python -m loadtest.proxy``: stand between a client and a server, and disturb.

Says each second what it did, until Ctrl-C. For example, a Redis that takes 200 ms for a call::

    python -m loadtest.proxy --listen 6400 --target 127.0.0.1:6379 --latency 0.1 &
    presence serve --redis redis://127.0.0.1:6400
"""

import argparse
import contextlib
import signal
import sys
import time
from dataclasses import asdict

from loadtest.connection import raise_file_limit
from loadtest.proxy.faults import Faults, Injected
from loadtest.proxy.server import Proxy, Target

REPORT_EVERY_S = 1.0


def target(text: str) -> Target:
    """Return what ``host:port`` or a path names; raises ValueError."""
    if "/" in text:
        return text
    host, _, port = text.rpartition(":")
    return host or "127.0.0.1", int(port)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.proxy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--listen", type=target, default="0", metavar="[HOST:]PORT", help="where clients connect; 0 picks one"
    )
    add(
        "--target", type=target, required=True, metavar="HOST:PORT", help="where to; or path of a Unix socket"
    )
    add("--latency", type=float, default=0.0, help="seconds by which all bytes are late, each way")
    add("--jitter", type=float, default=0.0, help="up to so many seconds more, by chance")
    add("--slice", type=int, default=0, help="send in pieces of 1 to so many bytes")
    add("--rate", type=float, default=0.0, help="bytes a second that go through a connection, each way")
    add("--only", choices=["up", "down"], help="all that only towards the target, or only back")
    add("--blackhole-every", type=float, default=0.0, help="seconds between blackholes; 0: none")
    add("--blackhole-for", type=float, default=5.0, help="seconds that each lasts")
    add("--reset-every", type=float, default=0.0, help="seconds between resets of connections; 0: none")
    add("--reset-share", type=float, default=1.0, help="share of the connections that is reset then")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Run until Ctrl-C."""
    given = parse(words)
    raise_file_limit()
    faults = Faults(given.latency, given.jitter, given.slice, given.rate)
    ways = {"up": given.only != "down", "down": given.only != "up"}
    host, port = given.listen
    with Proxy(given.target, port, host=host) as proxy:
        proxy.disturb(faults, **ways)
        print(f"ready {proxy.address[0]}:{proxy.address[1]}", flush=True)
        for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell has it ignored in the background
            signal.signal(number, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            _run(proxy, given, faults, ways)
    return 0


def _run(proxy: Proxy, given: argparse.Namespace, faults: Faults, ways: dict[str, bool]) -> None:
    begun = time.monotonic()
    told, holes, resets = Injected(), 0, 0
    while True:
        time.sleep(REPORT_EVERY_S)
        passed = time.monotonic() - begun
        if given.blackhole_every and passed // given.blackhole_every > holes:
            holes += 1
            proxy.blackhole(**ways)
            time.sleep(given.blackhole_for)
            proxy.disturb(faults, **ways)
        if given.reset_every and passed // given.reset_every > resets:
            resets += 1
            proxy.reset(given.reset_share)
        injected = proxy.injected
        done = {name: count for name, count in asdict(injected.since(told)).items() if count}
        told = injected
        print(f"{passed:7.1f} s  open {proxy.connections}  {done}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
