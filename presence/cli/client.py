"""``presence client``: acts as one device, from a shell."""

import argparse
import os
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from presence.cli.errors import FAILED, OK, USAGE, print_error
from presence.cli.local_server import local_server
from presence.cli.options import READER_SETTINGS, Load, UsageError, add_settings, secret_source
from presence.client import (
    Client,
    ClientOptions,
    Connected,
    Delivered,
    Disconnected,
    Dropped,
    EncodeError,
    Ended,
    Goodbye,
    PresenceError,
    Push,
    RequestError,
    RoomChanged,
    RoomState,
    TokenSource,
    UserState,
    WatchEnded,
    connect,
)
from presence.client.errors import error_text
from presence.common.text import counted, printable
from presence.config.loader import DEFAULT_SOURCE, TOKEN_VARIABLE
from presence.protocol.constants import STATUSES

STDIN = 0
READ_BYTES = 65_536
MAX_LINE_BYTES = 65_536  # more than a frame holds
HELP = (
    "TO text | /query UID… | /watch UID… | /unwatch [UID…] | /who | /rooms ROOM… | /away | /busy | /dnd | "
    "/invisible | /back | /status [TEXT] | /quit [background]"
)
SHOWS = ("/query", "/watch", "/who", "/rooms")
SETS_STATUS = {"/away": "away", "/busy": "busy", "/dnd": "dnd", "/back": "online", "/invisible": "invisible"}


_DESCRIPTION = (
    "Each line of input 'TO text' sends a message; the commands are /query, /watch, /unwatch, /who, "
    "/rooms (watches rooms), /away, /busy, /dnd, /invisible, /back, /status and /quit. Ctrl-C, Ctrl-D and "
    "/quit log out. At the end of other input than a terminal's the device stays online. A token comes from "
    "a file, standard input or PRESENCE_TOKEN, not an argument."
)
_EXAMPLE = "Over TLS, behind a proxy or not: presence client ann --host chat.example.com --port 7443 --tls"
_SETTINGS = {
    "host": "address of the server",
    "port": "TCP port of the server",
    "idle_timeout": "requested idle time-out in seconds, after which the server ends the session",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLE
    parser.add_argument("uid", metavar="UID")
    parser.add_argument("--device", help="device id")
    parser.add_argument(
        "--token",
        type=secret_source,
        metavar="@FILE|-",
        help="login token: a file, read for each login, or the first line of input "
        f"(default: {TOKEN_VARIABLE})",
    )
    parser.add_argument(
        "--tls", action="store_true", help="connect with TLS; --host must match the certificate"
    )
    parser.add_argument("--ca", metavar="FILE", help="trust only these authorities; implies --tls")
    parser.add_argument(
        "--cert", metavar="FILE", help="client certificate, followed by its chain; implies --tls"
    )
    parser.add_argument("--key", metavar="FILE", help="its private key (default: in the same file)")
    add_settings(parser, ("host", "port", "idle_timeout", *READER_SETTINGS), _SETTINGS)


class _Stop:
    """The scope to cancel in order to stop, and the first error, if any."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.failure: Exception | None = None

    def __call__(self, failure: Exception | None = None) -> None:
        self.failure = self.failure or failure
        self.scope.cancel()


def run(args: argparse.Namespace, load: Load) -> int:
    """Act as one device until ``/quit``, the end of terminal input, or a signal; return the exit status.

    If the input is not a terminal, the device stays online when it ends.
    """
    loaded = load()
    given = loaded.settings
    if not given.port:
        raise UsageError("client: --port must be the server's port")
    host, port = given.host, given.port
    if loaded.sources["host"] == loaded.sources["port"] == DEFAULT_SOURCE:
        wanted = "client: give --port of the server"
        server = local_server(wanted, lambda each: f"--host {each.host} --port {each.port}")
        host, port = (server.host, server.port) if server else (host, port)
    wish = None if loaded.sources["idle_timeout"] == DEFAULT_SOURCE else given.idle_timeout
    try:
        options = {
            "uid": args.uid,
            "device": args.device,
            "token": _token(args.token),
            "idle_timeout": wish,
            "options": ClientOptions(tls=_tls_context(args.ca, args.cert, args.key) or args.tls),
        }
        anyio.run(_run, host, port, options)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:  # an argument that the client refuses, a file that cannot be read
        print_error(error)
        return USAGE
    except PresenceError as error:
        print_error(error)
        return FAILED
    return OK


def _token(source: str | None) -> str | TokenSource | None:
    """Return a token, or a function that reads it from a file for each login."""
    if source is None:
        return os.environ.get(TOKEN_VARIABLE)
    if source == "-":
        return _first_line()
    file = Path(source[1:])
    file.read_text("utf-8")
    return lambda: file.read_text("utf-8").strip()


def _first_line() -> str:
    """Return the first line of input without reading further."""
    line = b""
    while len(line) < MAX_LINE_BYTES and (byte := os.read(STDIN, 1)) not in {b"", b"\n"}:
        line += byte
    return line.decode().strip()


def _tls_context(authorities: str | None, cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """Return a TLS context that trusts only these authorities and has this certificate; None without both."""
    if cert is None and key is not None:
        raise UsageError("client: --key needs --cert")
    if authorities is None and cert is None:
        return None
    file = authorities
    try:
        context = ssl.create_default_context(cafile=authorities)
        if (file := cert) is not None:
            context.load_cert_chain(file, key)
    except OSError as error:
        raise OSError(f"{file}: {error_text(error)}") from error
    return context


async def _run(host: str, port: int, options: dict[str, Any]) -> None:
    stop = _Stop()
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_stop_on_signal, signals, stop)
            try:
                with stop.scope:
                    await _run_client(host, port, options, stop)
            except PresenceError as error:
                stop.failure = error
            tasks.cancel_scope.cancel()
    if stop.failure is not None:
        raise stop.failure


async def _stop_on_signal(signals: AsyncIterator[int], stop: _Stop) -> None:
    async for _ in signals:  # a second signal also cuts the logout short
        stop()


async def _run_client(host: str, port: int, options: dict[str, Any], stop: _Stop) -> None:
    async with connect(host, port, **options) as client:
        connecting = stop.scope
        stop.scope = anyio.CancelScope()  # from here on, a stop leaves the block cleanly, with a logout
        with stop.scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_print_pushes, client, stop)
                await _read_lines(client, stop)
        stop.scope = connecting


async def _print_pushes(client: Client, stop: _Stop) -> None:
    try:
        async for push in client:
            for line in push_lines(push):
                _print_line(line)
    except (PresenceError, BrokenPipeError) as error:
        stop(error)
    else:
        stop()


async def _read_lines(client: Client, stop: _Stop) -> None:
    rest = b""
    try:
        while data := await _read_input():
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                _print_line("ignored: the line is too long")
                rest = b""
            for line in lines:
                if not await _run_line(client, line.decode("utf-8", "replace")):
                    return stop()
        if not await _run_line(client, rest.decode("utf-8", "replace")) or _is_terminal():
            stop()
    except BrokenPipeError as error:
        stop(error)
    return None


async def _read_input() -> bytes:
    """Return available input, ``b""`` at its end."""
    if sys.stdin is None:  # it is closed, so its descriptor may belong to another file
        return b""
    try:
        await anyio.wait_readable(STDIN)
    except PermissionError:  # a regular file: epoll refuses it, and reading it does not block
        await checkpoint()
    return os.read(STDIN, READ_BYTES)


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


async def _run_line(client: Client, line: str) -> bool:
    """Run one line of input; return whether to continue."""
    verb, *words = line.split() or [""]
    text = line.strip()[len(verb) :].strip()
    try:
        if verb == "/quit":
            if words == ["background"]:
                await client.logout("background")
            return False
        if verb in SHOWS:
            for shown in await _shown(client, verb, words):
                _print_line(shown)
        elif verb == "/unwatch":
            await client.unwatch(words or None)
            _print_line(f"watching {len(client.watched)}")
        elif verb in SETS_STATUS:
            await client.update(status=SETS_STATUS[verb])
            _print_line(f"shown as {SETS_STATUS[verb]}")
        elif verb == "/status":
            await client.update(meta={"status": text} if text else {})
            _print_line(f"shown with status: {text}" if text else "shown without a status")
        elif verb.startswith("/") or (verb and not words):
            _print_line(HELP)
        elif verb:
            count = await client.send_message(verb, text)
            _print_line(f"delivered to {count} session{'' if count == 1 else 's'}")
    except (RequestError, EncodeError) as error:
        _print_line(f"failed: {error}")
    except Ended:
        return True  # the task that prints pushes reports the reason
    return True


async def _shown(client: Client, verb: str, words: list[str]) -> list[str]:
    """Run a command that shows users or rooms; return its lines."""
    if verb == "/rooms":
        return [room_line(*each) for each in (await client.watch_rooms(words)).items()]
    if verb == "/who":
        states = client.watched
    else:
        states = await (client.query(words) if verb == "/query" else client.watch(words))
    return [state_line(*each) for each in states.items()]


def _print_line(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {printable(text)}", flush=True)


def push_lines(push: Push) -> list[str]:
    """Return a push as lines; text of other users may contain anything except line breaks."""
    if isinstance(push, Connected | Disconnected | Goodbye):
        return [_connection_line(push)]
    if isinstance(push, Delivered):
        return [f"{push.sender}: {line}" for line in _plain(push.body).split("\n")]
    if isinstance(push, WatchEnded):
        return [f"watch ended: {' '.join(push.uids)}: {push.reason} ({push.code}) {push.message}".rstrip()]
    if isinstance(push, Dropped):
        return [f"dropped, because they were not read in time: {push.count} of {push.kind}"]
    if isinstance(push, RoomChanged):
        return [room_line(push.room, push.state)]
    return [f"{state_line(push.uid, push.state)} ({push.reason})"]


def _connection_line(push: Connected | Disconnected | Goodbye) -> str:
    if isinstance(push, Connected):
        again = " again" if push.again else ""
        return (
            f"online{again}: session {push.session}, a keepalive every {push.keepalive:g} s, "
            f"idle time-out {push.idle_timeout:g} s"
        )
    if isinstance(push, Disconnected):
        message = f": {push.message}" if push.message else ""
        return f"lost the connection ({push.reason}{message}); reconnecting in {push.retry_in:.1f} s"
    return f"goodbye from the server: {push.reason} ({push.code}) {push.message}".rstrip()


def state_line(uid: str, state: UserState) -> str:
    """Return a user's state as one line: online since or last seen, and their `meta`."""
    line = f"{uid} is {state.status}"
    if state.status in STATUSES and state.since_ms is not None:
        line += f" since {_time(state.since_ms)}"
    elif state.last_seen_ms is not None:
        line += f", last seen {_time(state.last_seen_ms)}"
    elif state.status == "offline":
        line += ", never seen or long ago"
    return f"{line}, {_meta(state.meta)}" if state.meta else line


def room_line(room: str, state: RoomState | None) -> str:
    """Return the state of a room as one line; None: it may not be watched."""
    if state is None:
        return f"watch of {room} ended"
    members = f": {' '.join(sorted(state.members))}" if state.members else ""
    return f"{room} has {counted(state.count, 'member')}{members}"


def _meta(meta: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {_plain(value)}" for key, value in meta.items()).replace("\n", " ")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _time(unix_ms: int) -> str:
    """Return a local time, with the date unless it is today."""
    try:
        moment = time.localtime(unix_ms / 1000)
        today = moment[:3] == time.localtime()[:3]
        return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", moment)
    except (ValueError, OverflowError, OSError):  # out of range
        return f"{unix_ms} ms"
