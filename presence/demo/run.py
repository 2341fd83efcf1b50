"""The demo itself: an embedded Redis, a server, clients, a picture, a verdict, all in one process."""

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
from presence.admin.launcher import AdminProcess, serving
from presence.common import files
from presence.common.clock import Clock
from presence.config.loading import Settings
from presence.core.ticks import SLOTS_PER_TICK
from presence.demo.truth import Deed, DemoClient, OfflineBounds, TimelineEvent, Verdict, compare
from presence.demo.view import DemoView, Picture, show_summary
from presence.protocol import Kind
from presence.server.server import Server
from presence.store.shard_clients import forget_prefix
from presence.subscriber import Offline, Online, subscribe

IDLE_TIMEOUT_S = 10.0
TICK_S = 1.0
GRACE_S = 5.0
LOGIN_SPAN_S = 3.0  # the clients come one after another
FIRST_DEED_S = 5.0
LAST_DEED_S = 30.0
SETTLE_S = 1.5  # after the last expected event: what is wrong may still come
REFRESH_S = 0.25
LEAST_SECONDS = 25  # logins, a deed, T, and time to tell
LEAST_CLIENTS = 4  # one for each deed
MISBEHAVING = 25  # one client in so many falls silent, as many close, as many log out
PATIENCE_S = IDLE_TIMEOUT_S + TICK_S + 2.0


@dataclass
class _Stage:
    """What the tasks of the demo share."""

    seconds: float
    clients: list[DemoClient]
    picture: Picture
    events: list[TimelineEvent]
    begun: float

    @property
    def expected(self) -> int:
        """How many clients are to go offline."""
        return sum(client.deed is not Deed.BEATS for client in self.clients)

    def told(self) -> int:
        """How many offline events have come."""
        return sum(event.type == "offline" for event in self.events)


def cast_of(count: int) -> list[DemoClient]:
    """Return the clients, with their deeds shuffled among them."""
    each = max(1, count // MISBEHAVING)
    deeds = [Deed.FALLS_SILENT] * each + [Deed.CLOSES] * each + [Deed.LOGS_OUT] * each
    deeds += [Deed.BEATS] * (count - len(deeds))
    random.shuffle(deeds)
    return [DemoClient(f"user-{number:03}", deed) for number, deed in enumerate(deeds[:count])]


def run(
    redis_url: str, prefix: str, *, seconds: float, clients: int, console: Console, no_admin: bool = False
) -> bool | None:
    """Run the demo; return whether truth and events agree, None when it was interrupted.

    Its keys begin with `prefix` and a name of their own, and are gone afterwards. Unless there is to be
    `no_admin`, the live page shows it, too.
    """
    files.claim(2 * clients)
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
        cleanup.callback(forget_prefix, redis_url, settings.prefix)
        admin_process = None
        if not no_admin:
            admin_process = cleanup.enter_context(serving(settings, redis_url, asked_for=False))
        play = partial(_play, redis_url, settings, seconds, cast_of(clients))
        verdict = trio.run(partial(play, console=console, admin_process=admin_process))
    if verdict is None:
        return None
    show_summary(verdict, console)
    return not verdict.differences


async def _play(
    redis_url: str,
    settings: Settings,
    seconds: float,
    clients: list[DemoClient],
    *,
    console: Console,
    admin_process: AdminProcess | None,
) -> Verdict | None:
    stats_socket = admin_process.line() if admin_process else None
    server = Server(settings, redis_url, 2 * len(clients), Clock(), stats_socket=stats_socket)
    picture = Picture(seconds, TICK_S / SLOTS_PER_TICK, url=admin_process.url if admin_process else "")
    stage = _Stage(seconds, clients, picture, [], trio.current_time())
    interrupted = False

    async def stop_on_signal() -> None:
        nonlocal interrupted
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            await anext(signals)
        interrupted = True
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_on_signal)
        host, port = await nursery.start(server.serve)
        nursery.start_soon(_read_events, redis_url, settings.prefix, stage)
        nursery.start_soon(_send_in, stage, host, port)
        with DemoView(picture, console) as view:
            await _show(stage, server, view)
        nursery.cancel_scope.cancel()
    if interrupted:
        return None
    return compare(clients, stage.events, OfflineBounds(IDLE_TIMEOUT_S, TICK_S, GRACE_S))


async def _send_in(stage: _Stage, host: str, port: int) -> None:
    """Start every client at its moment."""
    last_deed_s = min(LAST_DEED_S, stage.seconds - PATIENCE_S - SETTLE_S)
    async with trio.open_nursery() as nursery:
        for number, client in enumerate(stage.clients):
            acts_at = stage.begun + random.uniform(FIRST_DEED_S, last_deed_s)  # noqa: S311 - a demo's chance
            await trio.sleep_until(stage.begun + LOGIN_SPAN_S * number / len(stage.clients))
            nursery.start_soon(_live, client, math.inf if client.deed is Deed.BEATS else acts_at, host, port)


async def _live(client: DemoClient, acts_at: float, host: str, port: int) -> None:
    """Be a client: log in, beat, do the deed at `acts_at`; who falls silent stays until it is cancelled.

    The client library would come back after every loss; these must be able to misbehave on purpose, and know
    exactly what they did when.
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
        if client.deed is Deed.LOGS_OUT:
            await send(protocol.encode(protocol.logout()))
        elif client.deed is Deed.CLOSES:
            client.last_act = time.time()
        client.done = True
        if client.deed is Deed.FALLS_SILENT:
            await trio.sleep_forever()


async def _read_events(redis_url: str, prefix: str, stage: _Stage) -> None:
    """Take events from the stream, as any subscriber would."""
    async with subscribe(redis_url, prefix=prefix, after="0") as events:
        async for event in events:
            if isinstance(event, Online | Offline):
                kind = "online" if isinstance(event, Online) else "offline"
                told = TimelineEvent(event.uid, kind, event.code, event.at_ms)
                stage.events.append(told)
                stage.picture.add(told)


async def _show(stage: _Stage, server: Server, view: DemoView) -> None:
    """Redraw until the time is up, or until everything that is to come has come."""
    picture = stage.picture
    slots = int((IDLE_TIMEOUT_S + TICK_S) / picture.slot_s)
    end = stage.begun + stage.seconds
    while (now := trio.current_time()) < end:
        picture.elapsed_s = now - stage.begun
        picture.online = len(server.node.core.sessions)
        picture.slots = server.node.core.slot_sizes(slots)
        view.refresh()
        if stage.told() >= stage.expected and all(client.logged_in for client in stage.clients):
            end = min(end, now + SETTLE_S)
        await trio.sleep(REFRESH_S)
