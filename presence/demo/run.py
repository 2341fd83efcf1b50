"""Runs the demo in one process: an embedded Redis, a server, and the load test's devices and judge.

Tests: `tests/demo/test_devices.py`, `tests/system/demo/test_demo.py`,
`tests/system/demo/test_planted_faults.py`.
"""

import secrets
import signal
import time
from contextlib import ExitStack
from functools import partial

import trio
from rich.console import Console

from presence.admin.launcher import AdminProcess, running_admin_process
from presence.common import files
from presence.common.clock import Clock
from presence.config.loader import Settings
from presence.demo import web_roster
from presence.demo.devices import ACTIONS, DemoRun, uid_of
from presence.demo.view import print_line, show_summary
from presence.loadtest.client_loop import ClientLoop
from presence.loadtest.judge import EventDeadlines
from presence.server.listeners import ListenAddress
from presence.server.server import Server
from presence.store.embedded import EmbeddedError, EmbeddedRedis
from presence.store.shard_clients import forget_prefix
from presence.subscriber import entries

IDLE_TIMEOUT_S = 10.0
DEADLINES = EventDeadlines(tick_s=1.0, grace_s=5.0, slack_s=0.5)
LOGIN_SPAN_S = 3.0  # clients log in one after another
FIRST_ACTION_S = 5.0
LAST_ACTION_S = 30.0
SETTLE_S = 1.5  # after the last expected event, to catch wrong ones
LINE_INTERVAL_S = 5.0
TURN_S = 0.01  # between two looks at the clients' connections
WATCH_INTERVAL_S = 0.2  # between two looks at the processes of the demo and at what is due
WATCHED_USERS = 60  # on the page: one in eight of them acts
MIN_SECONDS = 25  # logins, an action, T, and time for the event
MIN_CLIENTS = len(ACTIONS) + 1
OFFLINE_TIMEOUT_S = IDLE_TIMEOUT_S + DEADLINES.tick_s + 2.0


def run(
    redis: str | EmbeddedRedis,
    prefix: str,
    *,
    seconds: float,
    clients: int,
    console: Console,
    no_admin: bool = False,
    web: bool = False,
) -> bool | None:
    """Run the demo; return whether the events match the clients' actions, None if interrupted.

    Its keys have a prefix of their own below `prefix`, and are deleted afterwards. The live page shows the
    demo unless `no_admin`. With `web` a page in the browser follows some of its users, and everything
    remains until it is interrupted.

    Raises:
        EmbeddedError: the embedded Redis has exited, and the events with it.
    """
    files.raise_file_limit(2 * clients)
    redis_url = redis if isinstance(redis, str) else redis.url
    settings = Settings(
        prefix=f"{prefix}-demo-{secrets.token_hex(4)}",
        port=0,
        idle_timeout=IDLE_TIMEOUT_S,
        tick=DEADLINES.tick_s,
        disconnect_grace=DEADLINES.grace_s,
        ws_port=0 if web else None,
        no_admin=no_admin,
        log_format="console",
        log_level="warning",
    )
    with ExitStack() as cleanup:
        if isinstance(redis, str):  # else they end with it
            cleanup.callback(forget_prefix, redis_url, settings.prefix)
        admin_process = None
        if not no_admin:
            admin_process = cleanup.enter_context(running_admin_process(settings, redis_url, asked_for=False))
        play = partial(_play, redis, settings, seconds=seconds, clients=clients)
        return trio.run(partial(play, console=console, admin_process=admin_process, web=web))


async def _play(
    redis: str | EmbeddedRedis,
    settings: Settings,
    *,
    seconds: float,
    clients: int,
    console: Console,
    admin_process: AdminProcess | None,
    web: bool,
) -> bool | None:
    redis_url = redis if isinstance(redis, str) else redis.url
    stats_socket = admin_process.line() if admin_process else None
    server = Server(settings, redis_url, 2 * clients, Clock(), stats_socket=stats_socket)
    last_action_s = min(LAST_ACTION_S, seconds - OFFLINE_TIMEOUT_S - SETTLE_S)
    is_interrupted = is_shown = False

    async def stop_on_signal() -> None:
        nonlocal is_interrupted
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            await anext(signals)
        is_interrupted = True
        nursery.cancel_scope.cancel()

    async def watch_children() -> None:
        while isinstance(redis, str) or redis.process.poll() is None:
            due_s = admin_process.supervise() if admin_process else WATCH_INTERVAL_S
            await trio.sleep(min(due_s, WATCH_INTERVAL_S))
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_on_signal)
        nursery.start_soon(watch_children)
        address = await nursery.start(server.serve)
        now = time.monotonic()
        acts_within = (now + FIRST_ACTION_S, now + last_action_s)
        demo = DemoRun(address, clients, DEADLINES, acts_within, has_visitors=web)
        demo.start(LOGIN_SPAN_S)
        nursery.start_soon(_drive, demo.loop)
        nursery.start_soon(_read_events, redis_url, settings.prefix, demo)
        if admin_process is not None:
            print_line(console, f"live page: {admin_process.url}")
        if server.websocket_address is not None:
            watched = [uid_of(number) for number in range(min(clients, WATCHED_USERS))]
            nursery.start_soon(_serve_page, server.websocket_address, watched, console)
        await _await_events(demo, server, console, now + last_action_s, now + seconds)
        demo.close()
        if web:
            show_summary(demo, console)
            is_shown = True
            print_line(console, "everyone stays until Ctrl-C")
            await trio.sleep_forever()
        nursery.cancel_scope.cancel()
    if is_interrupted and not is_shown:
        return None
    if isinstance(redis, EmbeddedRedis) and redis.process.poll() is not None:
        raise EmbeddedError(f"the embedded Redis has exited: {redis.last_lines()}")
    if not is_shown:
        show_summary(demo, console)
    return not demo.differences


async def _serve_page(websocket: ListenAddress, watched: list[str], console: Console) -> None:
    with web_roster.serving_page(websocket, watched) as url:
        print_line(console, f"who is online: {url}")
        web_roster.open_in_browser(url)
        await trio.sleep_forever()


async def _drive(loop: ClientLoop) -> None:
    with loop:
        while True:
            loop.run_once(0.0)
            await trio.sleep(TURN_S)


async def _read_events(redis_url: str, prefix: str, demo: DemoRun) -> None:
    """Read the streams, like any subscriber."""
    async with entries(redis_url, prefix=prefix, after="0") as items:
        async for item in items:
            demo.take(item)


async def _await_events(
    demo: DemoRun, server: Server, console: Console, last_action_at: float, end: float
) -> None:
    """Print the state now and then until the time is up, or no event has been due for `SETTLE_S`."""
    begun = printed_at = time.monotonic()
    while (now := time.monotonic()) < end:
        if now < last_action_at or demo.judge.count_due():
            settled_at = now + SETTLE_S
        elif now >= settled_at:
            return
        if now >= printed_at + LINE_INTERVAL_S:
            printed_at = now
            events = ", ".join(f"{name} {count}" for name, count in demo.events.items()) or "none"
            online = len(server.node.engine.registry)
            print_line(console, f"{now - begun:5.1f} s  users online {online}  events: {events}")
        await trio.sleep(WATCH_INTERVAL_S)
