"""The client on trio: what a program holds in its hand. `trio_link` has the tasks that keep it alive."""

import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Self

import trio

from presence import protocol
from presence.client.errors import ConnectionLost, Ended, NotConnected, RequestError
from presence.client.pushes import Push, UserState, user_states
from presence.client.session import ASK_EVERY
from presence.client.shell import MAX_PUSHES, REQUEST_TIMEOUT_S, delivered_count, new_machine, tls_context
from presence.client.trio_link import OpenStream, TrioLink, open_tcp
from presence.client.types import Payload, State, Statistics, TokenSource
from presence.protocol import Packet


@asynccontextmanager
async def connect(
    host: str,
    port: int,
    *,
    uid: str | None = None,
    device: str | None = None,
    token: str | TokenSource | None = None,
    idle_timeout: float | None = None,
    meta: Mapping[str, Any] | None = None,
    status: str | None = None,
    tls: bool | ssl.SSLContext = False,
    wait: bool = True,
    request_timeout: float = REQUEST_TIMEOUT_S,
    max_pushes: int = MAX_PUSHES,
    ask_every: int = ASK_EVERY,
    open_stream: OpenStream | None = None,
) -> AsyncIterator["Client"]:
    """Be online for the length of an ``async with`` block.

    The client keepalives as the server dictates, notices a dead server, and comes back by itself, until the
    server forbids it. Leaving the block logs out; leaving it by an exception (or being cancelled) only
    closes the connection, so that the user stays online for the server's grace, in which the program may
    be back. Afterwards no task and no socket is left.

    Args:
        host: name or address of the server.
        port: its TCP port.
        uid: who is online; may be None where a token names it.
        device: which of the user's devices; None means the one default device.
        token: proof of who it is, where the server asks for one; or a function, plain or async, that makes
            one. It is called before each login, and again before a token that tells its end (`exp` of a JSON
            Web Token) is over: the fresh one is sent, and the connection stays. What it raises counts as a
            failed attempt, and so does, after a token was refused, that token again or an expired one. When
            another one is refused, the client ends. A plain one must not block.
        idle_timeout: a wish, seconds; the server decides, and `Connected` tells.
        meta: shown to others with the user's state: a map of at most 256 bytes packed.
        status: ``away`` for a user who is online and not looking; None means ``online``.
        tls: for a server behind TLS: True for the system's authorities, or a context with one's own; both
            check that the certificate names `host`.
        wait: enter the block when the first login is granted, and raise if the first attempt fails.
            With False it is entered at once, and the first login is sought as later ones are; `Connected`
            and `Disconnected` tell, and `Client.wait_online` waits.
        request_timeout: seconds that a request waits for its answer; ``trio.fail_after`` makes it less.
        max_pushes: how many may wait to be taken; beyond it one goes and is counted: a change of presence
            for which a later one of the same user waits, or else the oldest.
        ask_every: every n-th keepalive asks for an answer: a dead server is noticed within ``ask_every + 1``
            intervals. 3 spares the server two of three answers.
        open_stream: makes the connection in place of host and port (for tunnels, proxies, tests). It may
            raise OSError, and is cancelled when it takes too long.

    Raises:
        Unreachable: with `wait`, no server was found.
        NoToken: with `wait`, the function has made none.
        LoginRefused: with `wait`, the server refused the login.
        EncodeError: an argument breaks a rule of the protocol.
    """
    login = {"uid": uid, "device": device, "idle_timeout": idle_timeout, "meta": meta, "status": status}
    server = f"{host}:{port}"
    machine = new_machine(login, token, trio.current_time(), server=server, wait=wait, ask_every=ask_every)
    source = None if isinstance(token, str) else token
    opening = open_stream or partial(open_tcp, host, port, tls_context(tls))
    link = TrioLink(machine, opening, source, max_pushes)
    client = Client(link, request_timeout)
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        try:
            if wait:
                await client.wait_online()
            yield client
            if client.state is not State.ENDED:
                with suppress(RequestError, Ended):  # it ends, and cannot say so
                    await client.logout()
        except BaseException as error:  # carried past the nursery, which would wrap it into a group
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # or the exception and this frame would keep each other alive


class Client:
    """A client that `connect` runs. ``async for push in client`` takes what comes, in order.

    The loop ends after a logout or `close`; it raises `LoginRefused`, `Replaced` or another `Ended` when
    the server has ended the client for good. Requests raise `NotConnected` while the client is not logged in;
    they are not queued, for what they would say may be stale by then.
    """

    def __init__(self, link: TrioLink, request_timeout_s: float) -> None:
        self._link = link
        self._request_timeout_s = request_timeout_s

    # Requests

    async def send_message(self, to: str, body: Any, *, retry: bool = True) -> int:
        """Send `body`, any value of MessagePack's own types, to all sessions of the user `to`.

        Returns the number of sessions that it went to, at least 1. Messages that one client sends to one user
        arrive in that order.

        Args:
            to: the recipient's uid.
            body: what to send.
            retry: send it again every second, within `request_timeout`, while the recipient has lost its
                connection and may return; what this client sends to the same user meanwhile waits behind it.

        Raises:
            RecipientOffline: the user has none.
            RecipientDisconnected: the user has lost its connection, and has not returned in time.
            Busy, Unsupported, RequestFailed: the server refused, and delivered it to nobody.
            Uncertain: it may have been delivered, or not: `ConnectionLost`, `RequestTimeout`, `ServerFailed`.
            NotConnected, Ended: not logged in; nothing was sent.
            EncodeError: an argument breaks a rule of the protocol.
        """
        return delivered_count(await self._request(protocol.message(to, body), retries=retry))

    async def query(self, uids: Iterable[str]) -> dict[str, UserState]:
        """Return the states of at most 500 users. Raises as `send_message`."""
        return user_states(await self._request(protocol.query(uids)))

    async def watch(self, uids: Iterable[str]) -> dict[str, UserState]:
        """Return the states of at most 500 users; `PresenceChanged` follows for each change.

        It outlives the connection: after each return the client watches again by itself, and
        `PresenceChanged` tells what is otherwise than it was last told; `WatchEnded`, if the server will not
        any more. Watching somebody twice is watching him once. `watched` has the newest state of everybody.

        Raises as `send_message`, and then watches nobody who was not watched before; `LimitReached`: there
        would be more than the server allows on a connection.
        """
        machine = self._link.machine
        id = machine.request(protocol.watch(uids), self._request_timeout_s, trio.current_time())
        try:
            answer = await self._link.wait_for_answer(id)
        except trio.Cancelled:
            machine.abandon_request(id)
            self._link.perform([])
            raise
        return machine.persistent_state.watches.newest(user_states(answer))

    def watch_nowait(self, uids: Iterable[str]) -> None:
        """Watch at most 500 users from now on, whether the client is logged in or not.

        What they are comes as `PresenceChanged` with the reason ``watched``; until then they are ``unknown``
        in `watched`. A server that is busy is asked again; `WatchEnded` tells if it will not. Raises `Ended`,
        or `EncodeError` for what are no uids, or too many.
        """
        self._link.machine.watch_nowait(list(uids), trio.current_time())
        self._link.perform([])

    async def unwatch(self, uids: Iterable[str] | None = None) -> None:
        """Stop watching some users, or all, at once and whatever is raised; a push that waits still comes.

        While the client is not logged in there is nobody to be told, and it returns at once. Raises
        `RequestFailed` or `RequestTimeout` if the server did not confirm it; `Ended`; or `EncodeError`, and
        then nothing changed.
        """
        given = None if uids is None else list(uids)
        id = self._link.machine.unwatch(given, self._request_timeout_s, trio.current_time())
        if id is None:
            await trio.lowlevel.checkpoint()
            return
        with suppress(ConnectionLost):  # and with the connection went the watch
            await self._link.wait_for_answer(id)

    async def update(
        self,
        *,
        meta: Mapping[str, Any] | None = None,
        token: str | None = None,
        status: str | None = None,
    ) -> None:
        """Change what is given: how the user is shown on this device (`meta`, `status`), or the token.

        Once granted it is also what later logins carry, so that a user who is away stays so when the
        connection breaks and comes back. `meta` takes the place of the former, an empty one removes it.
        `status` is ``away`` or ``online``; a server may have set the user away by itself, because nothing but
        keepalives came for long: any request ends that.

        Raises as `send_message`, and is then not remembered.
        """
        await self._request(protocol.update(meta=meta, token=token, status=status))

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
        status: str | None = None,
    ) -> None:
        """Change what later logins carry, also while offline: after `Disconnected` 302, a fresh token.

        Raises `EncodeError` if a part breaks a rule of the protocol.
        """
        self._link.machine.persistent_state.log_in_with(token=token, meta=meta, status=status)

    async def logout(self, reason: str | None = None) -> None:
        """Log out: the user is offline at once, and the client has ended, whatever is raised.

        The reason is ``logout`` or ``background``; `EncodeError`: it is neither, and the client goes on.
        Raises `NotConnected`, `ConnectionLost` or `RequestTimeout` if the server could not be told; `Ended`.
        """
        try:
            id = self._link.machine.log_out(reason, trio.current_time())
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
        """Where the client stands."""
        return self._link.machine.state

    @property
    def watched(self) -> dict[str, UserState]:
        """The newest known state of everybody who is watched, whether its push was taken yet or not.

        While the client is offline, and until the server has answered after a return, it is what was known.
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
        await trio.lowlevel.checkpoint()
        while self._link.machine.state is not State.ONLINE:
            if self._link.machine.state is State.ENDED:
                raise self._link.machine.end_error().with_traceback(None)
            await self._link.changed.park()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Push:
        await trio.lowlevel.checkpoint()
        while not len(self._link.inbox):
            if self._link.machine.state is State.ENDED:
                if self._link.machine.error is None:
                    raise StopAsyncIteration
                raise self._link.machine.error.with_traceback(None)
            await self._link.changed.park()
        return self._link.inbox.pop()

    async def _request(self, packet: Packet, *, retries: bool = False) -> Payload:
        now = trio.current_time()
        id = self._link.machine.request(packet, self._request_timeout_s, now, retries=retries)
        return await self._link.wait_for_answer(id)
