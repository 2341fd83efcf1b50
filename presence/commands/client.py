"""``presence client``: one device, from a shell."""

import os
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import NamedTuple

import trio

from presence.client import (
    Client,
    EncodeError,
    Ended,
    PresenceError,
    RequestError,
    TokenSource,
    UserState,
    connect,
)
from presence.client.verbs import why
from presence.commands.client_text import push_lines, state_line
from presence.commands.outcome import FAILED, OK, USAGE, complain
from presence.rendering import printable

STDIN = 0
READ_BYTES = 65_536
LINE_MAX_BYTES = 65_536  # no frame holds as much
HELP = (
    "TO text | /query UID… | /watch UID… | /unwatch [UID…] | /who | /away | /back | /status [TEXT] | "
    "/quit [background]"
)


class Device(NamedTuple):
    """Who logs in, and where.

    Attributes:
        token: ``@FILE``: it is read from the file whenever one is needed, and no list of processes shows it.
        tls: whether the server is behind TLS.
        ca: a file of the authorities to trust there, in place of the system's; implies `tls`.
    """

    host: str
    port: int
    uid: str
    device: str | None = None
    token: str | TokenSource | None = None
    idle_timeout: float | None = None
    tls: bool | ssl.SSLContext = False
    ca: str | None = None


class _Stop:
    """How everything ends: the scope to cancel, and what went wrong, if anything did."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.failure: Exception | None = None

    def __call__(self, failure: Exception | None = None) -> None:
        self.failure = self.failure or failure
        self.scope.cancel()


def run(device: Device) -> int:
    """Be one device until ``/quit``, the end of a terminal's input, or a signal; return the exit status.

    Where the input is no terminal, its end is no reason to leave: the device stays online.

    Raises:
        BrokenPipeError: nobody reads standard output any more.
    """
    try:
        trio.run(_run, _with_files(device))
    except BrokenPipeError:
        raise
    except (EncodeError, OSError, UnicodeError) as error:
        complain(error)
        return USAGE
    except PresenceError as error:
        complain(error)
        return FAILED
    return OK


def _with_files(device: Device) -> Device:
    """Return the device with what its files hold; that of the token is read again for each login.

    Raises:
        OSError, UnicodeError: one cannot be read.
    """
    if isinstance(device.token, str) and device.token.startswith("@"):
        file = Path(device.token[1:])
        file.read_text("utf-8")
        device = device._replace(token=lambda: file.read_text("utf-8").strip())
    if device.ca is None:
        return device
    try:
        return device._replace(tls=ssl.create_default_context(cafile=device.ca))
    except OSError as error:
        raise OSError(f"{device.ca}: {why(error)}") from error


async def _run(device: Device) -> None:
    stop = _Stop()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, signals, stop)
            try:
                with stop.scope:
                    await _live(device, stop)
            except PresenceError as error:
                stop.failure = error
            nursery.cancel_scope.cancel()
    if stop.failure is not None:
        raise stop.failure


async def _stop_on_signal(signals: AsyncIterator[int], stop: _Stop) -> None:
    async for _ in signals:  # a second one ends also what is left of the logout's time
        stop()


async def _live(device: Device, stop: _Stop) -> None:
    async with connect(
        device.host,
        device.port,
        uid=device.uid,
        device=device.device,
        token=device.token,
        idle_timeout=device.idle_timeout,
        tls=device.tls,
    ) as client:
        entering = stop.scope
        stop.scope = trio.CancelScope()  # from here on, a stop leaves the block in order: with a logout
        with stop.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_print_pushes, client, stop)
                await _take_lines(client, stop)
        stop.scope = entering


async def _print_pushes(client: Client, stop: _Stop) -> None:
    try:
        async for push in client:
            for line in push_lines(push):
                _tell(line)
    except (PresenceError, BrokenPipeError) as error:
        stop(error)
    else:
        stop()


async def _take_lines(client: Client, stop: _Stop) -> None:
    rest = b""
    try:
        while data := await _read_input():
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LINE_MAX_BYTES:
                _tell("not done: the line is too long")
                rest = b""
            for line in lines:
                if not await _take(client, line.decode("utf-8", "replace")):
                    return stop()
        if not await _take(client, rest.decode("utf-8", "replace")) or _is_terminal():
            stop()
    except BrokenPipeError as error:
        stop(error)
    return None


async def _read_input() -> bytes:
    """Return some input, ``b""`` at its end."""
    if sys.stdin is None:  # it was closed, so its number may mean anything by now
        return b""
    try:
        await trio.lowlevel.wait_readable(STDIN)
    except PermissionError:  # a file: epoll takes none, and it never keeps anybody waiting
        await trio.lowlevel.checkpoint()
    return os.read(STDIN, READ_BYTES)


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


async def _take(client: Client, line: str) -> bool:
    """Carry out one line; return whether to go on."""
    verb, *words = line.split() or [""]
    text = line.strip()[len(verb) :].strip()
    try:
        if verb == "/quit":
            if words == ["background"]:
                await client.logout("background")
            return False
        if verb == "/query":
            _tell_states(await client.query(words))
        elif verb == "/watch":
            _tell_states(await client.watch(words))
        elif verb == "/unwatch":
            await client.unwatch(words or None)
            _tell(f"watching {len(client.watched)}")
        elif verb == "/who":
            _tell_states(client.watched)
        elif verb in {"/away", "/back"}:
            await (client.away() if verb == "/away" else client.back())
            _tell(f"shown as {'away' if verb == '/away' else 'online'}")
        elif verb == "/status":
            await client.update(meta={"status": text} if text else {})
            _tell(f"shown with status: {text}" if text else "shown without a status")
        elif verb.startswith("/") or (verb and not words):
            _tell(HELP)
        elif verb:
            count = await client.send_message(verb, text)
            _tell(f"delivered to {count} session{'' if count == 1 else 's'}")
    except (RequestError, EncodeError) as error:
        _tell(f"not done: {error}")
    except Ended:
        return True  # whoever prints the pushes will say why
    return True


def _tell_states(states: Mapping[str, UserState]) -> None:
    for uid, state in states.items():
        _tell(state_line(uid, state))


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {printable(text)}", flush=True)
