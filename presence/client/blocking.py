"""The client without an event loop, for scripts: a background thread runs it, and calls block.

Tests: `tests/client/test_blocking_handle.py`, `tests/system/client/test_blocking.py`.
"""

import os
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from contextvars import Context
from datetime import datetime, timedelta
from functools import partial
from inspect import iscoroutinefunction
from threading import RLock, Thread
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast
from weakref import finalize

import anyio
from anyio.from_thread import BlockingPortal

from presence.client.assembly import Connecting, connect
from presence.client.async_client import CONFIRM_S, Client
from presence.client.errors import Ended
from presence.client.lifecycle import State, Statistics
from presence.client.options import DEFAULTS, ClientOptions
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
)
from presence.client.tokens import BlockingTokenSource, TokenSource

T = TypeVar("T")
P = TypeVar("P", bound=Push)


def connect_blocking(
    host: str,
    port: int,
    *,
    uid: str | None = None,
    device: str | None = None,
    device_class: str | None = None,
    token: str | BlockingTokenSource | None = None,
    idle_timeout: float | timedelta | None = None,
    meta: Mapping[str, Any] | None = None,
    private: Mapping[str, Any] | None = None,
    status: str | None = None,
    quiet: bool = False,
    rooms: Iterable[str] = (),
    watch_devices: bool = False,
    wait: bool = True,
    options: ClientOptions = DEFAULTS,
) -> "BlockingClient":
    """Be online: until `BlockingClient.close`, or for the length of a ``with`` block.

    Arguments and errors are those of `connect`. A token function is called in a thread of its own, and may
    block.

    Leaving the block logs out; leaving it by an exception only closes the connection. Afterwards no thread
    and no socket is left. A running name lookup or token function is waited for. A program that ends without
    `close` is, to the server, a lost connection.
    """
    if iscoroutinefunction(token):
        raise TypeError("the token function of connect_blocking must be a plain one")
    source: str | TokenSource | None = token
    executor = None
    if callable(token):
        executor = ThreadPoolExecutor(1, "presence token")
        source = partial(_call_in, executor, token)
    connecting = connect(
        host,
        port,
        uid=uid,
        device=device,
        device_class=device_class,
        token=source,
        idle_timeout=idle_timeout,
        meta=meta,
        private=private,
        status=status,
        quiet=quiet,
        rooms=rooms,
        watch_devices=watch_devices,
        wait=wait,
        options=options,
    )
    with ExitStack() as stack:
        if executor is not None:
            stack.enter_context(executor)
        portal, thread = _start_thread()
        stack.push(partial(_stop_thread, portal, thread))
        client = _result(portal.start_task_soon(connecting.__aenter__))
        return BlockingClient(portal, connecting, client, stack.pop_all())


async def _call_in(executor: ThreadPoolExecutor, function: Callable[[], T]) -> T:
    return await get_running_loop().run_in_executor(executor, function)


def _start_thread() -> tuple[BlockingPortal, Thread]:
    """Start the thread of a client, with an event loop; return the way into it."""
    # Not anyio's `start_blocking_portal`: its generator calls the thread when it is collected, in a forked
    # process too, where there is no such thread, and waits forever.
    started: Future[BlockingPortal] = Future()

    async def run() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    def run_loop() -> None:
        try:
            Context().run(anyio.run, run)  # whatever loop the caller may be in
        except BaseException as error:
            if not started.done():
                started.set_exception(error)

    thread = Thread(target=run_loop, name="presence client", daemon=True)
    thread.start()
    return started.result(), thread


def _stop_thread(
    portal: BlockingPortal,
    thread: Thread,
    kind: type[BaseException] | None,
    _error: BaseException | None,
    _traceback: TracebackType | None,
) -> None:
    """End it; after an exception without waiting for calls of others."""
    with suppress(RuntimeError):  # it has ended
        portal.call(portal.stop, kind is not None)
    thread.join()


def _abandon(process: int, portal: BlockingPortal, client: Client, threads: ExitStack) -> None:
    """End a client that was never closed, without a logout. A forked process leaves its parent's alone."""
    if os.getpid() != process:
        return
    with suppress(RuntimeError):  # in its own thread, which cannot wait for itself
        portal.call(client.disconnect)
        portal.call(portal.stop, True)
        threads.close()


def _result(future: "Future[T]") -> T:
    """Wait for a call on the client's loop; cancel it if the wait is interrupted (Ctrl-C)."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class _Pushes(Generic[P]):
    """An iterator over the pushes of one kind."""

    def __init__(self, next_push: Callable[[], Push]) -> None:
        self._next_push = next_push

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> P:
        return cast(P, self._next_push())


class BlockingClient:
    """A client that `connect_blocking` has made; every method may be called from any thread.

    ``for push in client`` gives all pushes in order; `messages`, `presence_changes`, `room_changes` and
    `connection_changes` give those of one kind. A loop ends after a logout, `disconnect` or `close`; it
    raises `LoginRefused`, `Replaced` or another `Ended` when the server has ended the client for good.
    Requests raise `NotConnected` while the client is not logged in. In a ``with`` block the client is closed
    at its end.
    """

    def __init__(
        self, portal: BlockingPortal, connecting: Connecting, client: Client, threads: ExitStack
    ) -> None:
        self._portal = portal
        self._connecting = connecting
        self._client = client
        self._threads = threads
        self._closing = RLock()  # a signal handler may interrupt `close` by another
        self._is_closed = False
        # At the program's end, at the latest: later, no call to the thread would ever return.
        self._at_exit = finalize(self, _abandon, os.getpid(), portal, client, threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(partial(self._connecting.__aexit__, kind, error, traceback))

    # Requests

    def send_message(self, to: str, body: Any, *, retry: bool = True) -> int:
        """Send `body` to all sessions of a user; return their number. See `Client.send_message`."""
        return self._call(partial(self._client.send_message, to, body, retry=retry))

    def send_confirmed(self, to: str, body: Any, *, confirm: float | timedelta = CONFIRM_S) -> Receipt:
        """Send a message; return which sessions certainly have it. See `Client.send_confirmed`."""
        return self._call(partial(self._client.send_confirmed, to, body, confirm=confirm))

    def query(self, uids: Iterable[str], *, detail: bool = False) -> dict[str, UserState]:
        """Return the states of at most 500 users, with `detail` also those of their devices."""
        return self._call(partial(self._client.query, uids, detail=detail))

    def watch(self, uids: Iterable[str]) -> dict[str, UserState]:
        """Return the states of at most 500 users; `PresenceChanged` follows. See `Client.watch`."""
        return self._call(partial(self._client.watch, uids))

    def add_pass(self, visibility_pass: str) -> None:
        """Give the server a pass, by which this user may see others. See `Client.add_pass`."""
        self._call(partial(self._client.add_pass, visibility_pass))

    def watch_nowait(self, uids: Iterable[str]) -> None:
        """Watch users from now on, logged in or not. See `Client.watch_nowait`."""
        self._run(partial(self._client.watch_nowait, uids))

    def watch_roster(self) -> dict[str, UserState]:
        """Watch the users whom the backend has listed for this user. See `Client.watch_roster`."""
        return self._call(self._client.watch_roster)

    def watch_roster_nowait(self) -> None:
        """Watch the roster from now on, logged in or not. See `Client.watch_roster_nowait`."""
        self._run(self._client.watch_roster_nowait)

    def unwatch(self, uids: Iterable[str] | None = None) -> None:
        """Stop watching some users, or all. See `Client.unwatch`."""
        self._call(partial(self._client.unwatch, uids))

    def unwatch_roster(self) -> None:
        """Stop watching the users whom the backend has listed for this user. See `Client.unwatch_roster`."""
        self._call(self._client.unwatch_roster)

    def query_rooms(self, rooms: Iterable[str]) -> dict[str, RoomState]:
        """Return the state of at most 64 rooms."""
        return self._call(partial(self._client.query_rooms, rooms))

    def watch_rooms(self, rooms: Iterable[str]) -> dict[str, RoomState]:
        """Return the state of at most 64 rooms; `RoomChanged` follows. See `Client.watch_rooms`."""
        return self._call(partial(self._client.watch_rooms, rooms))

    def unwatch_rooms(self, rooms: Iterable[str] | None = None) -> None:
        """Stop watching some rooms, or all. See `Client.unwatch_rooms`."""
        self._call(partial(self._client.unwatch_rooms, rooms))

    def update(
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
        """Change the given fields, also for later logins. See `Client.update`."""
        update = partial(self._client.update, meta=meta, private=private, token=token)
        update = partial(update, status=status, until=until, scope=scope, hide=hide, quiet=quiet)
        self._call(partial(update, rooms=rooms, join=join, leave=leave))

    def set_idle_timeout(self, idle_timeout: float | timedelta) -> float:
        """Request another idle time-out; return the granted one. See `Client.set_idle_timeout`."""
        return self._call(partial(self._client.set_idle_timeout, idle_timeout))

    def away(self) -> None:
        """Show the user as away, until `back`: ``update(status="away")``."""
        self.update(status="away")

    def back(self) -> None:
        """Show the user as online again: ``update(status="online")``."""
        self.update(status="online")

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
        """Change what later logins carry. See `Client.log_in_with`."""
        change = partial(self._client.log_in_with, token=token, meta=meta, private=private)
        self._run(partial(change, status=status, until=until, quiet=quiet, rooms=rooms))

    def logout(self, reason: str | None = None) -> None:
        """Log out: the user is offline immediately, and the client has ended. See `Client.logout`."""
        self._call(partial(self._client.logout, reason))

    def disconnect(self) -> None:
        """End without a logout, as if the network broke: the user is offline after the server's grace."""
        self._run(self._client.disconnect)

    def close(self) -> None:
        """Log out, if the client is online, and wait until no thread and no socket is left.

        Does nothing the second time. See `Client.aclose`.
        """
        self._close(self._client.aclose)

    # State

    @property
    def state(self) -> State:
        """The state of the client."""
        return self._client.state

    @property
    def watched(self) -> dict[str, UserState]:
        """The newest known state of each watched user. See `Client.watched`."""
        return self._run(lambda: self._client.watched)

    @property
    def watched_rooms(self) -> dict[str, RoomState]:
        """The newest known state of each watched room. See `Client.watched_rooms`."""
        return self._run(lambda: self._client.watched_rooms)

    @property
    def joined(self) -> tuple[str, ...] | None:
        """The rooms that this device is in. See `Client.joined`."""
        return self._run(lambda: self._client.joined)

    def statistics(self) -> Statistics:
        """Return counters since the start."""
        return self._run(self._client.statistics)

    def server_time(self) -> datetime:
        """Return the time by the clock of the last server. See `Client.server_time`."""
        return self._run(self._client.server_time)

    def wait_online(self, timeout: float | timedelta | None = None) -> None:
        """Wait until the client is logged in; raises `Ended` if it never will be, or `TimeoutError`."""
        if self.state is State.ENDED:
            raise self._client._end_error()
        if self.state is not State.ONLINE:
            self._call(self._client.wait_online, _timeout_s(timeout))

    # Pushes

    def messages(self) -> Iterator[Delivered | Dropped]:
        """Return an iterator of the messages, which leaves all other pushes in their queues."""
        return _Pushes(partial(self._next_push, "messages"))

    def presence_changes(self) -> Iterator[PresenceChanged | WatchEnded | Dropped]:
        """Return an iterator of the changes of watched users."""
        return _Pushes(partial(self._next_push, "presence"))

    def room_changes(self) -> Iterator[RoomChanged | Dropped]:
        """Return an iterator of the changes of watched rooms."""
        return _Pushes(partial(self._next_push, "rooms"))

    def connection_changes(self) -> Iterator[Connected | Disconnected | Goodbye | Dropped]:
        """Return an iterator of what happens to the connection."""
        return _Pushes(partial(self._next_push, "connection"))

    def receive(self, timeout: float | timedelta | None = None, kind: PushKind | None = None) -> Push:
        """Return the next push, or the next of a kind: ``messages``, ``presence``, ``rooms`` or
        ``connection``.

        Raises:
            TimeoutError: none came within `timeout`, seconds or a timedelta; 0: none is there.
            Ended: no more will come; `LoginRefused`, `Replaced` … if the server ended the client.
        """
        timeout_s = _timeout_s(timeout)
        if self.state is State.ENDED or (timeout_s is not None and timeout_s <= 0):
            return self._run(partial(self._client.receive_nowait, kind))
        return self._call(partial(self._client.receive, kind), timeout_s)

    def _next_push(self, kind: PushKind | None = None) -> Push:
        """Return the next push, for a loop over them, which ends with the client."""
        try:
            return self.receive(kind=kind)
        except Ended:
            if self._client._was_ended_by_program:
                raise StopIteration from None
            raise

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Push:
        return self._next_push()

    def _call(self, function: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Call it on the client's loop and wait for it."""

        async def call() -> T:
            with anyio.fail_after(timeout_s):
                return await function()

        try:
            future: Future[T] = self._portal.start_task_soon(call)
        except RuntimeError:  # the client was closed
            raise self._client._end_error() from None
        try:
            return _result(future)
        except CancelledError:  # the client was closed meanwhile, because of an exception
            raise self._client._end_error() from None

    def _run(self, function: Callable[[], T]) -> T:
        """Call a plain function on the client's loop, or here once the client has been closed."""
        try:
            future: Future[T] = self._portal.start_task_soon(function)
        except RuntimeError:
            return function()
        return future.result()

    def _close(self, end: Callable[[], Awaitable[None]]) -> None:
        """End the client, and its threads; once."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self._at_exit.detach()
            with self._threads:
                self._call(end)


def _timeout_s(timeout: float | timedelta | None) -> float | None:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
