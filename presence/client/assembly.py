"""`connect`: makes a client of its options, and waits for its first login.

Tests: `tests/client/test_client.py`, `tests/client/test_handles.py`, `tests/client/test_given_values.py`.
"""

from collections.abc import Generator, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any

from presence import protocol
from presence.client.argument_checks import MAX_PORT, host_name, optional_names, seconds, whole
from presence.client.async_client import Client
from presence.client.inbox import Inbox
from presence.client.link import Link
from presence.client.options import DEFAULTS, ClientOptions
from presence.client.reconnect import ReconnectPolicy
from presence.client.state_machine import ClientMachine
from presence.client.tcp import TcpConnector
from presence.client.tokens import TokenSource


def connect(
    host: str,
    port: int,
    *,
    uid: str | None = None,
    device: str | None = None,
    device_class: str | None = None,
    token: str | TokenSource | None = None,
    idle_timeout: float | timedelta | None = None,
    meta: Mapping[str, Any] | None = None,
    private: Mapping[str, Any] | None = None,
    status: str | None = None,
    quiet: bool = False,
    rooms: Iterable[str] = (),
    watch_devices: bool = False,
    wait: bool = True,
    options: ClientOptions = DEFAULTS,
) -> "Connecting":
    """Be online: for the length of an ``async with`` block, or from ``await`` on until `Client.aclose`.

    The client sends keepalives at the server's interval, detects a dead server, and reconnects by itself
    until the server forbids it. Leaving the block logs out; leaving it by an exception, or being cancelled,
    only closes the connection: the user stays online for the server's grace, within which the program may
    return. Afterwards no task and no socket is left. A client belongs to no task: one may open it and another
    close it.

    Args:
        host: name or address of the server.
        port: its TCP port.
        uid: the user; may be None if a token names it.
        device: which of the user's devices; None means the default device.
        device_class: what the device is, such as ``phone`` or ``web``; the server may limit sessions by it.
        token: the user's token, if the server asks for one; or a function, plain or async, that returns one.
            It is called before each login, and again before a token expires whose expiry can be read (`exp`
            of a JSON Web Token): the new one is sent on the same connection. If it raises, the attempt has
            failed. After a refusal, the same token again or an expired one also counts as a failed attempt;
            if another token is refused, the client ends. A plain function must not block.
        idle_timeout: the requested one, seconds or a timedelta; the server decides, and `Connected` has the
            result.
        meta: shown to others with the user's state: a map of at most 256 bytes packed.
        private: as `meta`, but for the application's backend only.
        status: ``online``, also for None; ``away``, ``busy``, ``dnd`` (do not disturb) or ``invisible``.
        quiet: whether the app is in the background, see `Client.update`.
        rooms: the rooms that this device is in, at most 16; see `Client.update`. `Client.joined` has those
            that the server has let it into.
        watch_devices: whether the states of watched users have their devices, and a device that comes or goes
            is a change; the server's operator has to allow it (`device_events`), or `devices` is None.
        wait: wait for the first login, and raise if the first attempt fails. With False the client is there
            immediately, and a failed first attempt is repeated like later ones; `Connected` and
            `Disconnected` report it, and `Client.wait_online` waits for it.
        options: how the client uses its connection: TLS, time-outs, queues.

    Raises:
        ValueError, TypeError: an argument is wrong; `EncodeError`, a ValueError, if it breaks a rule of the
            protocol. These are raised by the call itself, all others by entering the block or by ``await``.
        Unreachable: with `wait`, the first attempt failed.
        NoToken: with `wait`, the function returned no token.
        LoginRefused: with `wait`, the server refused the login.
    """
    if not isinstance(options, ClientOptions):
        raise TypeError(f"options must be ClientOptions, not {type(options).__name__}")
    if token is not None and not isinstance(token, str) and not callable(token):
        raise TypeError(f"token must be a string or a function, not {type(token).__name__}")
    host, port = host_name(host), whole("port", port, MAX_PORT)
    own_token, source = (token, None) if isinstance(token, str) else (None, token)
    login = protocol.login(
        uid,
        token=own_token,
        v=protocol.VERSION,
        device=device,
        device_class=device_class,
        idle_timeout=None if idle_timeout is None else seconds("idle_timeout", idle_timeout),
        meta=meta,
        private=private,
        status=status,
        quiet=quiet or None,
        rooms=optional_names("rooms", rooms) or None,
    )
    machine = ClientMachine(
        login,
        0.0,
        reconnect_policy=ReconnectPolicy(f"{host}:{port}", persistent=not wait),
        fetches=source is not None,
        ask_every=options.ask_every,
        watch_devices=watch_devices,
    )
    opening = options.open_stream or TcpConnector(host, port, options.tls_context).open
    inbox = Inbox(options.max_messages, options.max_changes)
    link = Link(machine, opening, source, inbox)
    return Connecting(link, Client(link, options), wait)


class Connecting:
    """What `connect` returns: awaited, it is a client; in ``async with``, a client for the block."""

    def __init__(self, link: Link, client: "Client", wait: bool) -> None:
        self._link = link
        self._client = client
        self._wait = wait
        self._is_used = False

    def __await__(self) -> Generator[Any, None, "Client"]:
        return self._connect().__await__()

    async def __aenter__(self) -> "Client":
        return await self._connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, traceback)

    async def _connect(self) -> "Client":
        if self._is_used:
            raise RuntimeError("each call of connect makes one client")
        self._is_used = True
        self._link.start()
        if self._wait:
            try:
                await self._client.wait_online()
            except BaseException:
                await self._link.stop()
                raise
        return self._client
