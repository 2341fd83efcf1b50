"""Runs the demo in one process: an embedded Redis, a server, clients, a live view and the comparison."""

import math
import random
import secrets
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import trio
from rich.console import Console

from presence import protocol
from presence.admin.launcher import AdminProcess, running_admin_process
from presence.common import files
from presence.common.clock import Clock
from presence.common.runtime import run_in_thread
from presence.common.threads import NoThread
from presence.config.loading import Settings
from presence.core.slots import SLOTS_PER_TICK
from presence.demo.comparison import (
    ComparisonResult,
    DemoAction,
    DemoClient,
    OfflineBounds,
    TimelineEvent,
    compare,
)
from presence.demo.view import DemoState, DemoView, show_summary
from presence.protocol import Kind
from presence.server.server import Server
from presence.store.client import RedisError, open_client
from presence.store.embedded import EmbeddedError, EmbeddedRedis
from presence.store.shard_clients import forget_prefix
from presence.subscriber import Offline, Online, subscribe

IDLE_TIMEOUT_S = 10.0
TICK_S = 1.0
GRACE_S = 5.0
LOGIN_SPAN_S = 3.0  # clients log in one after another
FIRST_ACTION_S = 5.0
LAST_ACTION_S = 30.0
SETTLE_S = 1.5  # after the last expected event, to catch wrong ones
REFRESH_S = 0.25
WATCH_INTERVAL_S = 0.2  # between two looks whether the processes of the demo run
PING_INTERVAL_S = 1.0  # and whether Redis answers
MIN_SECONDS = 25  # logins, an action, T, and time for the event
MIN_CLIENTS = 4  # one for each action
CLIENTS_PER_MISBEHAVING = 25  # one client in so many falls silent, one closes, one logs out
OFFLINE_TIMEOUT_S = IDLE_TIMEOUT_S + TICK_S + 2.0


@dataclass
class _Stage:
    """The state that the tasks of the demo share."""

    seconds: float
    clients: list[DemoClient]
    state: DemoState
    events: list[TimelineEvent]
    begun: float

    @property
    def expected(self) -> int:
        """How many clients should go offline."""
        return sum(client.action is not DemoAction.STAYS_ALIVE for client in self.clients)

    def offline_events(self) -> int:
        """How many offline events have arrived."""
        return sum(event.type == "offline" for event in self.events)


def make_clients(count: int) -> list[DemoClient]:
    """Return clients with shuffled actions."""
    each = max(1, count // CLIENTS_PER_MISBEHAVING)
    actions = [DemoAction.FALLS_SILENT] * each + [DemoAction.CLOSES] * each + [DemoAction.LOGS_OUT] * each
    actions += [DemoAction.STAYS_ALIVE] * (count - len(actions))
    random.shuffle(actions)
    return [DemoClient(f"user-{number:03}", action) for number, action in enumerate(actions[:count])]


def run(
    redis: str | EmbeddedRedis,
    prefix: str,
    *,
    seconds: float,
    clients: int,
    console: Console,
    no_admin: bool = False,
) -> bool | None:
    """Run the demo; return whether the events match the clients' actions, None if interrupted.

    Its keys have a prefix of their own below `prefix`, and are deleted afterwards. The live page shows the
    demo unless `no_admin`.

    Raises:
        EmbeddedError: the embedded Redis has exited, and the events with it.
    """
    embedded = redis if isinstance(redis, EmbeddedRedis) else None
    redis_url = redis.url if isinstance(redis, EmbeddedRedis) else redis
    files.raise_file_limit(2 * clients)
    settings = Settings(
        prefix=f"{prefix}-demo-{secrets.token_hex(4)}",
        port=0,
        idle_timeout=IDLE_TIMEOUT_S,
        tick=TICK_S,
        disconnect_grace=GRACE_S,
        no_admin=no_admin,
        log_format="console",
        log_level="error",
    )
    with ExitStack() as cleanup:
        if embedded is None:  # else they end with it
            cleanup.callback(forget_prefix, redis_url, settings.prefix)
        admin_process = None
        if not no_admin:
            admin_process = cleanup.enter_context(running_admin_process(settings, redis_url, asked_for=False))
        play = partial(_play, redis_url, settings, seconds, make_clients(clients))
        result = trio.run(partial(play, console=console, admin_process=admin_process, embedded=embedded))
    if result is None:
        return None
    show_summary(result, console)
    return not result.differences


async def _play(
    redis_url: str,
    settings: Settings,
    seconds: float,
    clients: list[DemoClient],
    *,
    console: Console,
    admin_process: AdminProcess | None,
    embedded: EmbeddedRedis | None,
) -> ComparisonResult | None:
    stats_socket = admin_process.line() if admin_process else None
    server = Server(settings, redis_url, 2 * len(clients), Clock(), stats_socket=stats_socket)
    state = DemoState(seconds, TICK_S / SLOTS_PER_TICK, url=admin_process.url if admin_process else "")
    stage = _Stage(seconds, clients, state, [], trio.current_time())
    interrupted = False

    async def stop_on_signal() -> None:
        nonlocal interrupted
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            await anext(signals)
        interrupted = True
        nursery.cancel_scope.cancel()

    async def watch_children() -> None:
        while embedded is None or embedded.process.poll() is None:
            due_s = admin_process.supervise() if admin_process else WATCH_INTERVAL_S
            await trio.sleep(min(due_s, WATCH_INTERVAL_S))
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_on_signal)
        nursery.start_soon(watch_children)
        host, port = await nursery.start(server.serve)
        nursery.start_soon(_read_events, redis_url, settings.prefix, stage)
        nursery.start_soon(_start_clients, stage, host, port)
        with DemoView(state, console) as view:
            if embedded is not None:
                nursery.start_soon(_watch_answers, embedded.url, view)
            await _show(stage, server, view)
        nursery.cancel_scope.cancel()
    if interrupted:
        return None
    if embedded is not None and embedded.process.poll() is not None:
        raise EmbeddedError(f"the embedded Redis has exited: {embedded.last_lines()}")
    return compare(clients, stage.events, OfflineBounds(IDLE_TIMEOUT_S, TICK_S, GRACE_S))


async def _watch_answers(redis_url: str, view: DemoView) -> None:
    """Say when Redis stops answering, as one that was stopped does, and when it answers again."""
    is_away = False
    with open_client(redis_url) as client:
        while True:
            was_away = is_away
            try:
                await run_in_thread(client.ping)
            except NoThread:
                pass  # nothing was asked
            except RedisError:
                is_away = True
            else:
                is_away = False
            if is_away and not was_away:
                view.say("Redis does not answer: events come as soon as it does")
            elif was_away and not is_away:
                view.say("Redis answers again")
            await trio.sleep(PING_INTERVAL_S)


async def _start_clients(stage: _Stage, host: str, port: int) -> None:
    """Start the clients one after another."""
    last_action_s = min(LAST_ACTION_S, stage.seconds - OFFLINE_TIMEOUT_S - SETTLE_S)
    async with trio.open_nursery() as nursery:
        for number, client in enumerate(stage.clients):
            acts_at = stage.begun + random.uniform(FIRST_ACTION_S, last_action_s)  # noqa: S311 - not a secret
            await trio.sleep_until(stage.begun + LOGIN_SPAN_S * number / len(stage.clients))
            nursery.start_soon(
                _run_client,
                client,
                math.inf if client.action is DemoAction.STAYS_ALIVE else acts_at,
                host,
                port,
            )


async def _run_client(client: DemoClient, acts_at: float, host: str, port: int) -> None:
    """Run a client: log in, send keepalives, act at `acts_at`; silent clients stay until cancelled.

    The client library would reconnect after every loss; these clients must be able to misbehave on purpose,
    and record exactly what they did when.
    """
    async with await trio.open_tcp_stream(host, port) as stream:

        async def send(frame: bytes) -> None:
            client.last_act = time.time()
            await stream.send_all(frame)

        await send(protocol.encode(protocol.login(client.uid, id=1)))
        decoder = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)
        while (answer := decoder.next()) is None:
            if not (data := await stream.receive_some(4096)):
                return
            decoder.feed(data)
        client.logged_in = answer.kind == Kind.OK
        if not client.logged_in:
            return
        interval_s = answer.payload["keepalive"]
        due = trio.current_time() + random.uniform(0, interval_s)  # noqa: S311 - spreads load
        while due < acts_at:
            await trio.sleep_until(due)
            await send(protocol.KEEPALIVE)
            due += interval_s * random.uniform(0.9, 1.1)  # noqa: S311 - spreads load
        await trio.sleep_until(acts_at)
        if client.action is DemoAction.LOGS_OUT:
            await send(protocol.encode(protocol.logout()))
        elif client.action is DemoAction.CLOSES:
            client.last_act = time.time()
        client.done = True
        if client.action is DemoAction.FALLS_SILENT:
            await trio.sleep_forever()


async def _read_events(redis_url: str, prefix: str, stage: _Stage) -> None:
    """Read events from the stream, like any subscriber."""
    async with subscribe(redis_url, prefix=prefix, after="0") as events:
        async for event in events:
            if isinstance(event, Online | Offline):
                kind = "online" if isinstance(event, Online) else "offline"
                timeline_event = TimelineEvent(event.uid, kind, event.code, event.at_ms)
                stage.events.append(timeline_event)
                stage.state.add(timeline_event)


async def _show(stage: _Stage, server: Server, view: DemoView) -> None:
    """Redraw until the time is up, or all expected events have arrived."""
    state = stage.state
    slots = int((IDLE_TIMEOUT_S + TICK_S) / state.slot_s)
    end = stage.begun + stage.seconds
    while (now := trio.current_time()) < end:
        state.elapsed_s = now - stage.begun
        state.online = len(server.node.engine.registry)
        state.slots = server.node.engine.sessions.slot_sizes(slots)
        view.refresh()
        if stage.offline_events() >= stage.expected and all(client.logged_in for client in stage.clients):
            end = min(end, now + SETTLE_S)
        await trio.sleep(REFRESH_S)
