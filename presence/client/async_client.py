"""The public client, on asyncio and trio; `link` has the tasks that run it."""

import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Self

import anyio
from anyio.lowlevel import checkpoint

from presence import protocol
from presence.client.errors import ConnectionLost, Ended, NotConnected, PresenceError, RequestError
from presence.client.link import Link, OpenStream, open_tcp
from presence.client.pushes import Push, UserState, user_states
from presence.client.session import ASK_EVERY
from presence.client.shell import MAX_PUSHES, REQUEST_TIMEOUT_S, delivered_count, new_machine, tls_context
from presence.client.tokens import Payload, State, Statistics, TokenSource
from presence.protocol import Packet


@asynccontextmanager
async def connect(
    host: str,
    port: int,
    *,
    uid: str | None = None,
    device: str | None = None,
    device_class: str | None = None,
    token: str | TokenSource | None = None,
    idle_timeout: float | None = None,
    meta: Mapping[str, Any] | None = None,
    private: Mapping[str, Any] | None = None,
    status: str | None = None,
    watch_devices: bool = False,
    tls: bool | ssl.SSLContext = False,
    wait: bool = True,
    request_timeout: float = REQUEST_TIMEOUT_S,
    max_pushes: int = MAX_PUSHES,
    ask_every: int = ASK_EVERY,
    open_stream: OpenStream | None = None,
) -> AsyncIterator["Client"]:
    """Be online for the length of an ``async with`` block.

    The client sends keepalives at the server's interval, detects a dead server, and reconnects by itself
    until the server forbids it. Leaving the block logs out; leaving it by an exception, or being cancelled,
    only closes the connection: the user stays online for the server's grace, within which the program may
    return. Afterwards no task and no socket is left.

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
        idle_timeout: requested seconds; the server decides, and `Connected` has the result.
        meta: shown to others with the user's state: a map of at most 256 bytes packed.
        private: as `meta`, but for the application's backend only.
        status: ``online``, also for None; ``away``, ``busy``, ``dnd`` (do not disturb) or ``invisible``.
        watch_devices: whether the states of watched users have their devices, and a device that comes or goes
            is a change; the server's operator has to allow it (`device_events`), or `devices` is None.
        tls: for a server behind TLS: True for the system's authorities, or a context of your own; both check
            that the certificate names `host`.
        wait: enter the block when the first login is granted, and raise if the first attempt fails. With
            False it is entered immediately, and a failed first attempt is repeated like later ones;
            `Connected` and `Disconnected` report it, and `Client.wait_online` waits for it.
        request_timeout: seconds that a request waits for its answer; a cancel scope can shorten it.
        max_pushes: messages, and changes of presence, that wait for the program; beyond it the oldest are
            dropped, and a `Dropped` is in their place. A change for which a later one of the same user
            waits goes first, without one.
        ask_every: every n-th keepalive asks for an answer: a dead server is noticed within ``ask_every + 1``
            intervals. 3 spares the server two of three answers.
        open_stream: opens the connection instead of host and port (for tunnels, proxies, tests): an
            `anyio.abc.ByteStream`. It may raise OSError, and is cancelled at a time-out.

    Raises:
        Unreachable: with `wait`, the first attempt failed.
        NoToken: with `wait`, the function returned no token.
        LoginRefused: with `wait`, the server refused the login.
        EncodeError: an argument breaks a rule of the protocol.
    """
    login = {
        "uid": uid,
        "device": device,
        "device_class": device_class,
        "idle_timeout": idle_timeout,
        "meta": meta,
        "private": private,
        "status": status,
    }
    server = f"{host}:{port}"
    machine = new_machine(
        login,
        token,
        anyio.current_time(),
        server=server,
        wait=wait,
        ask_every=ask_every,
        watch_devices=watch_devices,
    )
    source = None if isinstance(token, str) else token
    opening = open_stream or partial(open_tcp, host, port, tls_context(tls))
    link = Link(machine, opening, source, max_pushes)
    client = Client(link, request_timeout)
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        try:
            if wait:
                await client.wait_online()
            yield client
            if client.state is not State.ENDED:
                with suppress(RequestError, Ended):  # the client ends anyway
                    await client.logout()
        except BaseException as error:  # carried past the task group, which would wrap it into a group
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # or the exception and this frame would keep each other alive


class Client:
    """A client that `connect` runs. ``async for push in client`` gives the pushes in order.

    The loop ends after a logout or `close`; it raises `LoginRefused`, `Replaced` or another `Ended` when the
    server has ended the client for good. Requests raise `NotConnected` while the client is not logged in;
    they are not queued, because they could be outdated by then.
    """

    def __init__(self, link: Link, request_timeout_s: float) -> None:
        self._link = link
        self._request_timeout_s = request_timeout_s

    # Requests

    async def send_message(self, to: str, body: Any, *, retry: bool = True) -> int:
        """Send `body`, any value of MessagePack's own types, to all sessions of the user `to`.

        Returns the number of sessions it was delivered to, at least 1. Messages of one client to one user
        arrive in the order of the calls, whether the program awaits each or not.

        Args:
            to: the recipient's uid.
            body: what to send.
            retry: send it again every second, within `request_timeout`, while the recipient has lost its
                connection and may return. Until its answer, later messages to the same user wait behind it:
                one per round trip. Many small ones that need no second try are faster with False.

        Raises:
            RecipientOffline: the user has no session.
            RecipientDisconnected: the user has lost its connection and has not returned in time.
            NotAllowed: this user may not see the recipient.
            Busy, Unsupported, RequestFailed: the server refused; nothing was delivered.
            Uncertain: it may or may not have been delivered: `ConnectionLost`, `RequestTimeout`,
                `ServerFailed`.
            NotConnected, Ended: not logged in; nothing was sent.
            EncodeError: an argument breaks a rule of the protocol.
        """
        return delivered_count(await self._request(protocol.message(to, body), retries=retry, undo=True))

    async def query(self, uids: Iterable[str], *, detail: bool = False) -> dict[str, UserState]:
        """Return the states of at most 500 users, with `detail` also those of their devices.

        Raises as `send_message`; `LimitReached`: with their devices, so many users do not fit into an answer.
        """
        return user_states(await self._request(protocol.query(uids, detail=detail or None)))

    async def watch(self, uids: Iterable[str]) -> dict[str, UserState]:
        """Return the states of at most 500 users; `PresenceChanged` follows for each change.

        The watch outlives the connection: after each reconnect the client restores it, and `PresenceChanged`
        reports differences from the last reported state; `WatchEnded` if the server refuses. Watching a user
        twice has no further effect. `watched` has the newest states.

        Raises as `send_message`, and then has added no watch; `LimitReached`: more than the server allows on
        a connection.
        """
        state = self._link.machine.persistent_state
        return state.watches.newest(user_states(await self._request(state.watch(uids), undo=True)))

    async def add_pass(self, visibility_pass: str) -> None:
        """Give the server a pass, by which this user may see others until it expires; see `presence.passes`.

        Watched users who were ``not_allowed`` are asked for again. The client gives its passes again on each
        connection. Raises as `send_message`: `RequestFailed` 303 for a pass that is not valid, or is another
        user's; `LimitReached`: a connection may hold 16.
        """
        await self._request(protocol.watch([], visibility_pass=visibility_pass))

    def watch_nowait(self, uids: Iterable[str]) -> None:
        """Watch at most 500 users from now on, logged in or not.

        Their states arrive as `PresenceChanged` with the reason ``watched``; until then they are ``unknown``
        in `watched`. A busy server is asked again; `WatchEnded` reports a refusal. Raises `Ended`, or
        `EncodeError` for invalid or too many uids.
        """
        self._link.machine.watch_nowait(list(uids), anyio.current_time())
        self._link.perform([])

    async def unwatch(self, uids: Iterable[str] | None = None) -> None:
        """Stop watching some users, or all, immediately, whatever is raised; queued pushes still come.

        While the client is not logged in, it sends nothing and returns immediately. Raises
        `RequestFailed` or `RequestTimeout` if the server did not confirm it; `Ended`; or `EncodeError`, and
        then nothing changed.
        """
        given = None if uids is None else list(uids)
        id = self._link.machine.unwatch(given, self._request_timeout_s, anyio.current_time())
        if id is None:
            await checkpoint()
            return
        with suppress(ConnectionLost):  # and with the connection went the watch
            await self._link.wait_for_answer(id)

    async def update(
        self,
        *,
        meta: Mapping[str, Any] | None = None,
        private: Mapping[str, Any] | None = None,
        token: str | None = None,
        status: str | None = None,
        until_ms: int | None = None,
    ) -> None:
        """Change the given fields: `meta`, `private` and `status` of this device, or the token.

        Once granted, later logins carry it too, so a user who is away is still away after a reconnect. `meta`
        and `private` replace the previous one, an empty one removes it. `status` is ``online``, ``away``,
        ``busy``, ``dnd`` or ``invisible``; with `until_ms`, Unix milliseconds by the server's clock, the
        status from before returns then. The server may also set the user away after a time with nothing but
        keepalives; any request ends that.

        Raises as `send_message`, and then later logins do not carry it.
        """
        await self._request(
            protocol.update(meta=meta, private=private, token=token, status=status, until_ms=until_ms)
        )

    async def set_idle_timeout(self, seconds: float) -> float:
        """Request another idle time-out; return the granted one. Later logins request the same.

        The keepalive interval follows: an app that goes to the background asks for a longer one, and is shown
        as online all the same. Raises as `send_message`; `Unsupported`: the server is older.
        """
        answer = await self._request(protocol.update(idle_timeout=seconds))
        granted: float = answer["idle_timeout"]
        return granted

    async def away(self) -> None:
        """Show the user as away, until `back`: ``update(status="away")``."""
        await self.update(status="away")

    async def back(self) -> None:
        """Show the user as online again: ``update(status="online")``."""
        await self.update(status="online")

    def log_in_with(
        self,
        *,
        token: str | None = None,
        meta: Mapping[str, Any] | None = None,
        private: Mapping[str, Any] | None = None,
        status: str | None = None,
        until_ms: int | None = None,
    ) -> None:
        """Change what later logins carry, also while offline: after `Disconnected` 302, a new token.

        Raises `EncodeError` if a field breaks a rule of the protocol.
        """
        self._link.machine.persistent_state.log_in_with(
            token=token, meta=meta, private=private, status=status, until_ms=until_ms
        )

    async def logout(self, reason: str | None = None) -> None:
        """Log out: the user is offline immediately, and the client has ended, whatever is raised.

        The reason is ``logout`` or ``background``; any other raises `EncodeError`, and the client goes on.
        Raises `NotConnected`, `ConnectionLost` or `RequestTimeout` if the server did not confirm it; `Ended`.
        """
        try:
            id = self._link.machine.log_out(reason, anyio.current_time())
        except NotConnected:
            self._link.perform([])
            raise
        await self._link.wait_for_answer(id)

    def close(self) -> None:
        """End without a logout, as if the network broke: the user is offline after the server's grace."""
        self._link.perform(self._link.machine.close())

    # State

    @property
    def state(self) -> State:
        """The state of the client."""
        return self._link.machine.state

    @property
    def watched(self) -> dict[str, UserState]:
        """The newest known state of each watched user, whether its push was read or not.

        While the client is offline, and until the server has answered after a reconnect, the last known
        states.
        """
        return self._link.machine.persistent_state.watches.states()

    def statistics(self) -> Statistics:
        """Return counters since the start."""
        return self._link.machine.statistics(self._link.inbox)

    async def wait_online(self) -> None:
        """Wait until the client is logged in.

        Raises:
            Ended, LoginRefused, Unreachable: it never will be.
        """
        await checkpoint()
        while self._link.machine.state is not State.ONLINE:
            if self._link.machine.state is State.ENDED:
                raise self.end_error()
            await self._link.changed.wait()

    async def receive(self) -> Push:
        """Return the next push.

        Raises:
            Ended: no more will come; `LoginRefused`, `Replaced` … if the server ended the client.
        """
        await checkpoint()
        while (push := self._link.inbox.pop()) is None:
            self._raise_after_the_end()
            await self._link.changed.wait()
        return push

    def receive_nowait(self) -> Push:
        """Return the next push; raises `TimeoutError` if none is there, or `Ended` as `receive`."""
        if (push := self._link.inbox.pop()) is None:
            self._raise_after_the_end()
            raise TimeoutError("no push is there")
        return push

    def _raise_after_the_end(self) -> None:
        if self._link.machine.state is State.ENDED:
            raise self.end_error()

    def end_error(self) -> PresenceError:
        """Return the error of requests to an ended client."""
        return self._link.machine.end_error().with_traceback(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Push:
        try:
            return await self.receive()
        except Ended:
            if self._link.machine.error is None:
                raise StopAsyncIteration from None
            raise

    async def _request(self, packet: Packet, *, retries: bool = False, undo: bool = False) -> Payload:
        """Send a request and return its answer; `undo`: if the call is cancelled, so is the request."""
        machine = self._link.machine
        id = machine.request(packet, self._request_timeout_s, anyio.current_time(), retries=retries)
        try:
            return await self._link.wait_for_answer(id)
        except anyio.get_cancelled_exc_class():
            if undo:
                machine.abandon_request(id)
                self._link.perform([])
            raise
