"""The public client, on asyncio and trio; `link` has the tasks that run it.

Tests: `tests/client/test_client.py`, `tests/client/test_handles.py`, `tests/client/test_streams.py`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, cast

import anyio
from anyio.lowlevel import checkpoint

from presence import protocol
from presence.client.argument_checks import names, optional_names, seconds, unix_ms
from presence.client.argument_checks import visibility_pass as checked_pass
from presence.client.errors import (
    ConnectionLost,
    Ended,
    NotConnected,
    PresenceError,
    RequestError,
    Unsupported,
)
from presence.client.lifecycle import Payload, State, Statistics
from presence.client.link import Link
from presence.client.options import ClientOptions
from presence.client.pushes import (
    Connected,
    Delivered,
    Disconnected,
    Dropped,
    Goodbye,
    PresenceChanged,
    Push,
    PushKind,
    Receipt,
    RoomChanged,
    RoomState,
    UserState,
    WatchEnded,
    receipt,
    room_states,
    user_states,
)
from presence.protocol import Code, Packet

CONFIRM_S: Final = 5.0  # to wait for confirmations: a phone that is awake takes a second or two

T = TypeVar("T", bound=Push)


class _Pushes(Generic[T]):
    """An iterator over the pushes of one kind."""

    def __init__(self, next_push: Callable[[], Awaitable[Push]]) -> None:
        self._next_push = next_push

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return cast(T, await self._next_push())


class Client:
    """A client that `connect` has made. ``async for push in client`` gives all pushes in order.

    `messages`, `presence_changes`, `room_changes` and `connection_changes` give those of one kind. A push is
    given once, so several tasks may each read another kind.

    A loop ends after a logout, `disconnect` or `aclose`; it raises `LoginRefused`, `Replaced` or another
    `Ended` when the server has ended the client for good. Requests raise `NotConnected` while the client is
    not logged in; they are not queued, because they could be outdated by then. In an ``async with`` block the
    client is closed at its end. All calls belong to the event loop that opened it: none is thread-safe.
    """

    def __init__(self, link: Link, options: ClientOptions) -> None:
        self._link = link
        self._request_timeout_s = options.request_timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await (self.aclose() if error is None else self._link.stop())

    # Requests

    async def send_message(self, to: str, body: Any, *, retry: bool = True) -> int:
        """Send `body`, any value of MessagePack's own types, to all sessions of the user `to`.

        Returns the number of sessions it was delivered to, at least 1. Messages of one client to one user
        arrive in the order of the calls, whether the program awaits each or not.

        Args:
            to: the recipient's uid.
            body: what to send.
            retry: send it again every second, within `request_timeout`, while the recipient has lost its
                connection and may return. Later messages to the same user wait behind it, and for the answer
                to the first one after a pause. False: one try.

        Raises:
            RecipientOffline: the user has no session.
            RecipientDisconnected: the user has lost its connection and has not returned in time, or a later
                message was, or may have been, delivered meanwhile; this one was not.
            NotAllowed: this user may not see the recipient.
            Busy, Unsupported, RequestFailed: the server refused; nothing was delivered.
            Uncertain: it may or may not have been delivered: `ConnectionLost`, `RequestTimeout`,
                `ServerFailed`.
            NotConnected, Ended: not logged in; nothing was sent.
            EncodeError: an argument breaks a rule of the protocol.
        """
        answer = await self._request(protocol.message(to, body), retries=retry, undo=True)
        delivered: int = answer.get("delivered", 0)
        return delivered

    async def send_confirmed(self, to: str, body: Any, *, confirm: float | timedelta = CONFIRM_S) -> Receipt:
        """Send a message, and return which of the recipient's sessions certainly have it.

        It returns as soon as all have confirmed it, or after `confirm`, which is 30 s at most. It is sent
        once, and later messages to the same user do not wait for it. A session whose client confirms
        messages, as this one does by itself, is confirmed when its app has received it; any other, when the
        kernel at the other end has.

        Raises as `send_message`.
        """
        within_s = seconds("confirm", confirm)
        packet = protocol.message(to, body, confirm=within_s)
        return receipt(await self._request(packet, within_s + self._request_timeout_s, undo=True))

    async def query(self, uids: Iterable[str], *, detail: bool = False) -> dict[str, UserState]:
        """Return the states of at most 500 users, with `detail` also those of their devices.

        Raises as `send_message`; `LimitReached`: with their devices, so many users do not fit into an answer.
        """
        return user_states(await self._request(protocol.query(names("uids", uids), detail=detail or None)))

    async def watch(self, uids: Iterable[str]) -> dict[str, UserState]:
        """Return the states of at most 500 users; `PresenceChanged` follows for each change.

        The watch outlives the connection: after each reconnect the client restores it, and `PresenceChanged`
        reports differences from the last reported state; `WatchEnded` if the server refuses. Watching a user
        twice has no further effect. `watched` has the newest states.

        Raises as `send_message`, and then has added no watch; `LimitReached`: more than the server allows on
        a connection.
        """
        state = self._link.machine.persistent_state
        answer = await self._request(state.watch(names("uids", uids)), undo=True)
        return state.watches.newest(user_states(answer))

    async def watch_roster(self) -> dict[str, UserState]:
        """Watch the users whom the backend has listed for this user; return their states.

        Their changes follow as for `watch`, also after a reconnect. So do changes of the list:
        `PresenceChanged` with the reason ``watched`` for a user who is added, and with the status and reason
        ``removed`` for one who is taken off it, and not watched any more unless `watch` was called, too.
        `unwatch` of a listed user counts until the client asks for the list again: after a login or a new
        pass.

        Raises as `watch`; `Unsupported`: the server is older, and keeps no rosters.
        """
        state = self._link.machine.persistent_state
        answer = await self._request(state.watch([], roster=True), undo=True)
        return state.watches.newest(user_states(answer))

    def watch_roster_nowait(self) -> None:
        """As `watch_roster`, logged in or not; the states arrive as for `watch_nowait`. Raises `Ended`."""
        self._link.machine.watch_roster_nowait(self._link.now())
        self._link.perform([])

    async def add_pass(self, visibility_pass: str) -> None:
        """Give the server a pass, by which this user may see others until it expires; see `presence.passes`.

        Watched users who were ``not_allowed`` are asked for again. The client gives its passes again on each
        connection. Raises as `send_message`: `RequestFailed` 303 for a pass that is not valid, or is another
        user's; `LimitReached`: a connection may hold 16.
        """
        await self._request(protocol.watch([], visibility_pass=checked_pass(visibility_pass)))

    def watch_nowait(self, uids: Iterable[str]) -> None:
        """Watch at most 500 users from now on, logged in or not.

        Their states arrive as `PresenceChanged` with the reason ``watched``; until then they are ``unknown``
        in `watched`. A busy server is asked again; `WatchEnded` reports a refusal. Raises `Ended`, or
        `EncodeError` for invalid or too many uids.
        """
        self._link.machine.watch_nowait(names("uids", uids), self._link.now())
        self._link.perform([])

    async def unwatch(self, uids: Iterable[str] | None = None) -> None:
        """Stop watching some users, or all, the roster and all rooms, immediately, whatever is raised.

        Queued pushes still come. While the client is not logged in, it sends nothing and returns immediately.
        Raises `RequestFailed`, `ServerFailed` or `RequestTimeout` if the server did not confirm it; `Ended`;
        or `EncodeError`, and then nothing changed.
        """
        given = optional_names("uids", uids)
        await self._unwatched(self._link.machine.unwatch(given, self._request_timeout_s, self._link.now()))

    async def unwatch_roster(self) -> None:
        """Stop watching the users whom the backend has listed for this user; changes of the list end, too.

        Users whom the program also watches by name stay watched. As `unwatch`, it takes effect immediately,
        whatever is raised.
        """
        await self._unwatched(self._link.machine.unwatch_roster(self._request_timeout_s, self._link.now()))

    async def query_rooms(self, rooms: Iterable[str]) -> dict[str, RoomState]:
        """Return the state of at most 64 rooms.

        Raises as `watch_rooms`; `LimitReached`: the answer with all members would be too large.
        """
        return room_states(await self._request(protocol.query(rooms=names("rooms", rooms))))

    async def watch_rooms(self, rooms: Iterable[str]) -> dict[str, RoomState]:
        """Return the state of at most 64 rooms; `RoomChanged` follows for each change.

        This device need not be in them. The watch outlives the connection, as that of users does.
        `watched_rooms` has the newest states.

        Raises as `send_message`, and then has added no watch: `NotAllowed`: this client may not watch one of
        the rooms; `LimitReached`: more than 64 on a connection; `Unsupported`: the server is older, or has no
        rooms.
        """
        answer = await self._request(protocol.watch(rooms=names("rooms", rooms)), undo=True)
        return self._link.machine.persistent_state.watched_rooms.newest(room_states(answer))

    async def unwatch_rooms(self, rooms: Iterable[str] | None = None) -> None:
        """Stop watching some rooms, or all. As `unwatch`, it takes effect immediately, whatever is raised."""
        given, machine = optional_names("rooms", rooms), self._link.machine
        await self._unwatched(machine.unwatch_rooms(given, self._request_timeout_s, self._link.now()))

    async def _unwatched(self, id: int | None) -> None:
        """Wait until the server has confirmed an unwatch, unless it ended with the connection."""
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
        until: datetime | timedelta | None = None,
        scope: str | None = None,
        hide: Iterable[str] | None = None,
        quiet: bool | None = None,
        rooms: Iterable[str] | None = None,
        join: Iterable[str] | None = None,
        leave: Iterable[str] | None = None,
    ) -> None:
        """Change the given fields: `meta`, `private`, `status`, rooms of this device, the token, `quiet`, or
        what the user hides from others.

        Once granted, later logins carry it too, so a user who is away is still away after a reconnect. `meta`
        and `private` replace the previous one, an empty one removes it. `status` is ``online``, ``away``,
        ``busy``, ``dnd`` or ``invisible``; with `until`, a time with its zone or a duration from now, the
        status from before returns then. Both count by the server's clock. The server may also set the user
        away after a time with nothing but keepalives; any request ends that. With `quiet`, for an app in the
        background, the server holds changes of watched users, and sends the latest of each behind its next
        keepalive or request; messages still come immediately. ``quiet=False`` brings what is held. An older
        server holds nothing.

        With the `scope` ``user``, ``invisible`` is of the user: on all devices, also without this one, until
        an update of any device has another status with this scope. `hide` names what others are not shown:
        ``last_seen``, or nothing. The server keeps both; later logins carry neither.

        This device is then in `rooms`, or by default in those from before, without those of `leave`, and in
        those of `join`; `joined` has the result.

        Raises as `send_message`, and then later logins do not carry it. ValueError: `until` has no time zone,
        is no duration above 0, or comes without `status`, or with an invisibility of the user; `scope` comes
        without `status`. `NotAllowed`: the token does not name one of the rooms; `LimitReached`: the device
        would be in more than 16. `Unsupported`: the server is older, and hides nothing for the user, or has
        no rooms; the rest was granted, the status for this device.
        """
        if scope is not None and (status is None or (scope == "user" and until and status == "invisible")):
            raise ValueError("scope goes with a status; an invisible user has no end")
        until_ms = unix_ms(until, status, self._time_of_requests)
        wanted = None if hide is None else list(hide)
        shown = protocol.update(status=status, until_ms=until_ms, scope=scope, hide=wanted).payload
        places = protocol.update(
            rooms=optional_names("rooms", rooms),
            join=optional_names("join", join),
            leave=optional_names("leave", leave),
        ).payload
        answer = await self._request(
            protocol.update(meta=meta, private=private, token=token, quiet=quiet, **shown, **places)
        )
        if (scope == "user" and answer.get("scope") != scope) or not {*(wanted or ())} <= {
            *answer.get("hide", ())
        }:
            raise _unsupported("this server does not hide that for the user")
        if places and "joined" not in answer:
            raise _unsupported("this server has no rooms")

    async def set_idle_timeout(self, idle_timeout: float | timedelta) -> float:
        """Request another idle time-out, in seconds or a timedelta; return the granted one, in seconds.

        Later logins request the same.

        The keepalive interval follows: an app that goes to the background asks for a longer one, and is shown
        as online all the same. Raises as `send_message`; `Unsupported`: the server is older.
        """
        wanted = seconds("idle_timeout", idle_timeout)
        answer = await self._request(protocol.update(idle_timeout=wanted))
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
        until: datetime | timedelta | None = None,
        quiet: bool | None = None,
        rooms: Iterable[str] | None = None,
    ) -> None:
        """Change what later logins carry, also while offline: after `Disconnected` 302, a new token.

        Raises `EncodeError` if a field breaks a rule of the protocol; for `until` see `update`, and
        RuntimeError for a duration before the first login, when the server's clock is unknown.
        """
        until_ms = unix_ms(until, status, self.server_time)
        self._link.machine.persistent_state.log_in_with(
            token=token,
            meta=meta,
            private=private,
            status=status,
            until_ms=until_ms,
            quiet=quiet,
            rooms=optional_names("rooms", rooms),
        )

    async def logout(self, reason: str | None = None) -> None:
        """Log out: the user is offline immediately, and the client has ended, whatever is raised.

        The reason is ``logout`` or ``background``; any other raises `EncodeError`, and the client goes on.
        Raises `NotConnected`, `ConnectionLost` or `RequestTimeout` if the server did not confirm it; `Ended`.
        """
        try:
            id = self._link.machine.log_out(reason, self._link.now())
        except NotConnected:
            self._link.perform([])
            raise
        await self._link.wait_for_answer(id)

    def disconnect(self) -> None:
        """End without a logout, as if the network broke: the user is offline after the server's grace."""
        self._link.perform(self._link.machine.close())

    async def aclose(self) -> None:
        """Log out, if the client is online, and wait until no task and no socket is left.

        Does nothing more the second time. If the logout fails, or the call is cancelled, the client has ended
        all the same. Raises only what an error in this library, or in the function of `open_stream`, has
        raised.
        """
        try:
            if self.state is State.ONLINE:
                with suppress(RequestError, Ended):  # the client ends anyway
                    await self.logout()
            while self.state is State.LOGGING_OUT:  # by another task
                await self._link.changed.wait()
        finally:
            await self._link.stop()

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

    @property
    def watched_rooms(self) -> dict[str, RoomState]:
        """The newest known state of each watched room; while the client is offline, the last known one."""
        return self._link.machine.persistent_state.watched_rooms.states()

    @property
    def joined(self) -> tuple[str, ...] | None:
        """The rooms that this device is in, in the order of their bytes, as the server has said last.

        Those that the token puts it into are among them. None: before the first login, and on a server that
        is older or has no rooms. While the client is offline, those of the last connection.
        """
        joined = self._link.machine.persistent_state.joined
        return None if joined is None else tuple(joined)

    def statistics(self) -> Statistics:
        """Return counters since the start."""
        return self._link.machine.statistics(self._link.inbox)

    def server_time(self) -> datetime:
        """Return the time by the clock of the last server, which may differ from this computer's.

        Raises RuntimeError before the first login, when that clock is unknown.
        """
        time_s = self._link.machine.server_time_s(self._link.now())
        if time_s is None:
            raise RuntimeError("the server's clock is unknown before the first login")
        return datetime.fromtimestamp(time_s, UTC)

    def _time_of_requests(self) -> datetime:
        """Return the time for a request; raises as the request would, while the client is not logged in."""
        self._link.machine.check_online()
        return self.server_time()

    async def wait_online(self) -> None:
        """Wait until the client is logged in.

        Raises:
            Ended, LoginRefused, Unreachable: it never will be.
        """
        await checkpoint()
        while self._link.machine.state is not State.ONLINE:
            if self._link.machine.state is State.ENDED:
                raise self._end_error()
            await self._link.changed.wait()

    # Pushes

    def messages(self) -> AsyncIterator[Delivered | Dropped]:
        """Return an iterator of the messages, which leaves all other pushes in their queues."""
        return _Pushes(partial(self._next_push, "messages"))

    def presence_changes(self) -> AsyncIterator[PresenceChanged | WatchEnded | Dropped]:
        """Return an iterator of the changes of watched users."""
        return _Pushes(partial(self._next_push, "presence"))

    def room_changes(self) -> AsyncIterator[RoomChanged | Dropped]:
        """Return an iterator of the changes of watched rooms."""
        return _Pushes(partial(self._next_push, "rooms"))

    def connection_changes(self) -> AsyncIterator[Connected | Disconnected | Goodbye | Dropped]:
        """Return an iterator of what happens to the connection."""
        return _Pushes(partial(self._next_push, "connection"))

    async def receive(self, kind: PushKind | None = None) -> Push:
        """Return the next push, or the next of a kind: ``messages``, ``presence``, ``rooms`` or
        ``connection``.

        Raises:
            Ended: no more will come; `LoginRefused`, `Replaced` … if the server ended the client.
        """
        await checkpoint()
        while (push := self._link.inbox.pop(kind)) is None:
            self._raise_after_the_end()
            await self._link.changed.wait(kind)
        return push

    def receive_nowait(self, kind: PushKind | None = None) -> Push:
        """Return the next push, or the next of a kind.

        Raises `TimeoutError` if none is there, or `Ended` as `receive`.
        """
        if (push := self._link.inbox.pop(kind)) is None:
            self._raise_after_the_end()
            raise TimeoutError("no push is there")
        return push

    def _raise_after_the_end(self) -> None:
        if self._link.machine.state is State.ENDED:
            raise self._end_error()

    def _end_error(self) -> PresenceError:
        return self._link.machine.end_error().with_traceback(None)

    async def _next_push(self, kind: PushKind) -> Push:
        """Return the next push of a kind, for a loop over them, which ends with the client."""
        try:
            return await self.receive(kind)
        except Ended:
            if self._was_ended_by_program:
                raise StopAsyncIteration from None
            raise

    @property
    def _was_ended_by_program(self) -> bool:
        """Whether the program has ended the client, and not the server or an error."""
        return self._link.machine.state is State.ENDED and self._link.machine.error is None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Push:
        try:
            return await self.receive()
        except Ended:
            if self._was_ended_by_program:
                raise StopAsyncIteration from None
            raise

    async def _request(
        self, packet: Packet, timeout_s: float | None = None, *, retries: bool = False, undo: bool = False
    ) -> Payload:
        """Send a request and return its answer; `undo`: if the call is cancelled, so is the request.

        `timeout_s`: None for that of the options.
        """
        machine = self._link.machine
        if timeout_s is None:
            timeout_s = self._request_timeout_s
        id = machine.request(packet, timeout_s, self._link.now(), retries=retries)
        try:
            return await self._link.wait_for_answer(id)
        except anyio.get_cancelled_exc_class():
            if undo:
                self._link.perform(machine.abandon_request(id))
            raise


def _unsupported(message: str) -> Unsupported:
    return Unsupported(Code.UNSUPPORTED, Code.UNSUPPORTED.reason, message)
