"""Shows the state on a terminal until the user leaves, or prints it once.

Tests: `tests/cli/test_top.py`, `tests/system/cli/test_top.py`.
"""

import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio
from rich.console import Console
from rich.live import Live

from presence.top.feed import read_feed
from presence.top.state import TopState
from presence.top.view import TopView

REFRESH_INTERVAL_S: Final = 0.5
ONCE_TIMEOUT_S: Final = 15.0  # more than `read_feed` waits for the first sample
LEAVING_KEYS: Final = frozenset(b"qQ\x03")  # Ctrl-C is a key while the terminal is in use


def run(url: str, token: Callable[[], str], *, once: bool) -> str:
    """Show the server until q, Ctrl-C or a signal, or print it `once`.

    Args:
        url: of its HTTP interface, without a slash at the end.
        token: see `read_feed`.
        once: print it as soon as there are two samples.

    Returns:
        Why nothing could be shown; "" if something was.
    """
    state = TopState(url)
    console = Console(highlight=False, emoji=False)
    trio.run(_print_once if once else _show, state, token, console)
    return "" if state.sample else state.problem


async def _print_once(state: TopState, token: Callable[[], str], console: Console) -> None:
    samples = 0

    def count() -> None:
        nonlocal samples
        samples += 1
        if samples == 2:  # rates and CPU are those of the second between them
            reading.cancel()

    with trio.move_on_after(ONCE_TIMEOUT_S) as reading:
        await read_feed(state, token, count)
    if state.sample:
        console.print(TopView(state))


async def _show(state: TopState, token: Callable[[], str], console: Console) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            sampled = trio.Event()

            async def leave_on_signal() -> None:
                await anext(signals)
                nursery.cancel_scope.cancel()

            async def read() -> None:
                await read_feed(state, token, sampled.set)
                nursery.cancel_scope.cancel()

            nursery.start_soon(leave_on_signal)
            nursery.start_soon(read)
            await sampled.wait()
            with _raw_keys(), Live(TopView(state), console=console, screen=True, auto_refresh=False) as live:
                nursery.start_soon(_redraw, live)
                await _wait_for_leaving_key()
            nursery.cancel_scope.cancel()


async def _redraw(live: Live) -> None:
    while True:
        live.refresh()
        await trio.sleep(REFRESH_INTERVAL_S)


async def _wait_for_leaving_key() -> None:
    while True:
        await trio.lowlevel.wait_readable(sys.stdin)
        keys = os.read(sys.stdin.fileno(), 1024)
        if not keys or not LEAVING_KEYS.isdisjoint(keys):
            return


@contextmanager
def _raw_keys() -> Iterator[None]:
    """Let keys arrive one by one and unseen; afterwards the terminal is as before."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    mode = termios.tcgetattr(terminal)
    mode[3] &= ~termios.ISIG  # Ctrl-Z would leave the shell with this screen
    termios.tcsetattr(terminal, termios.TCSADRAIN, mode)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
