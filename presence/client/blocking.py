"""The client without an event loop, for scripts: a background thread runs it, and calls block."""

import ssl
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Self, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from presence.client.async_client import Client, connect
from presence.client.errors import Ended
from presence.client.pushes import Push, UserState
from presence.client.session import ASK_EVERY
from presence.client.shell import MAX_PUSHES, REQUEST_TIMEOUT_S
from presence.client.tokens import BlockingTokenSource, State, Statistics
from presence.protocol import Code

T = TypeVar("T")


@contextmanager
def connect_blocking(
    host: str,
    port: int,
    *,
    uid: str | None = None,
    device: str | None = None,
    device_class: str | None = None,
    token: str | BlockingTokenSource | None = None,
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
) -> Iterator["BlockingClient"]:
    """Be online for the length of a ``with`` block. Arguments and errors are those of `connect`.

    A token function is called in a thread of its own, and may block.

    Leaving the block logs out; leaving it by an exception only closes the connection. Afterwards no thread
    and no socket is left. A running name lookup or token function is waited for.
    """
    with ExitStack() as stack:
        source: str | Callable[[], Awaitable[str]] | None
        if token is None or isinstance(token, str):
            source = token
        else:
            executor = stack.enter_context(ThreadPoolExecutor(1, "presence token"))

            async def source() -> str:
                return await get_running_loop().run_in_executor(executor, token)

        portal = stack.enter_context(start_blocking_portal("asyncio", name="presence client"))
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
            watch_devices=watch_devices,
            tls=tls,
            wait=wait,
            request_timeout=request_timeout,
            max_pushes=max_pushes,
            ask_every=ask_every,
        )
        client = stack.enter_context(portal.wrap_async_context_manager(connecting))
        yield BlockingClient(portal, client)


class BlockingClient:
    """A client that `connect_blocking` runs; every method may be called from any thread.

    ``for push in client`` gives the pushes in order. The loop ends after a logout or `close`; it raises
    `LoginRefused`, `Replaced` or another `Ended` when the server has ended the client for good. Requests
    raise `NotConnected` while the client is not logged in.
    """

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal = portal
        self._client = client

    # Requests

    def send_message(self, to: str, body: Any, *, retry: bool = True) -> int:
        """Send `body` to all sessions of a user; return their number. See `Client.send_message`."""
        return self._call(partial(self._client.send_message, to, body, retry=retry))

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

    def unwatch(self, uids: Iterable[str] | None = None) -> None:
        """Stop watching some users, or all. See `Client.unwatch`."""
        self._call(partial(self._client.unwatch, uids))

    def update(
        self,
        *,
        meta: Mapping[str, Any] | None = None,
        private: Mapping[str, Any] | None = None,
        token: str | None = None,
        status: str | None = None,
        until_ms: int | None = None,
    ) -> None:
        """Change the given fields, also for later logins. See `Client.update`."""
        update = partial(self._client.update, meta=meta, private=private, token=token)
        self._call(partial(update, status=status, until_ms=until_ms))

    def set_idle_timeout(self, seconds: float) -> float:
        """Request another idle time-out; return the granted one. See `Client.set_idle_timeout`."""
        return self._call(partial(self._client.set_idle_timeout, seconds))

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
        until_ms: int | None = None,
    ) -> None:
        """Change what later logins carry. See `Client.log_in_with`."""
        change = partial(self._client.log_in_with, token=token, meta=meta, private=private)
        self._run(partial(change, status=status, until_ms=until_ms))

    def logout(self, reason: str | None = None) -> None:
        """Log out: the user is offline immediately, and the client has ended. See `Client.logout`."""
        self._call(partial(self._client.logout, reason))

    def close(self) -> None:
        """End without a logout, as if the network broke: the user is offline after the server's grace."""
        self._run(self._client.close)

    # State

    @property
    def state(self) -> State:
        """The state of the client."""
        return self._client.state

    @property
    def watched(self) -> dict[str, UserState]:
        """The newest known state of each watched user. See `Client.watched`."""
        return self._run(lambda: self._client.watched)

    def statistics(self) -> Statistics:
        """Return counters since the start."""
        return self._run(self._client.statistics)

    def wait_online(self, timeout: float | None = None) -> None:
        """Wait until the client is logged in; raises `Ended` if it never will be, or `TimeoutError`."""
        if self.state is State.ENDED:
            raise self._client.end_error()
        if self.state is not State.ONLINE:
            self._call(self._client.wait_online, timeout)

    def receive(self, timeout: float | None = None) -> Push:
        """Return the next push.

        Raises:
            TimeoutError: none came within `timeout` seconds; 0: none is there.
            Ended: no more will come; `LoginRefused`, `Replaced` … if the server ended the client.
        """
        if self.state is State.ENDED or (timeout is not None and timeout <= 0):
            return self._run(self._client.receive_nowait)
        return self._call(self._client.receive, timeout)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Push:
        try:
            return self.receive()
        except Ended as ended:
            if ended.code == Code.LOGOUT:  # by this program
                raise StopIteration from None
            raise

    def _call(self, function: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """Call it on the client's loop and wait for it; cancel it if the wait is interrupted (Ctrl-C)."""

        async def call() -> T:
            with anyio.fail_after(timeout):
                return await function()

        try:
            future: Future[T] = self._portal.start_task_soon(call)
        except RuntimeError:  # the block has been left
            raise self._client.end_error() from None
        try:
            return future.result()
        except CancelledError:  # the block was left by an exception
            raise self._client.end_error() from None
        except BaseException:
            future.cancel()
            raise

    def _run(self, function: Callable[[], T]) -> T:
        """Call a plain function on the client's loop, or here once the block has been left."""
        try:
            future: Future[T] = self._portal.start_task_soon(function)
        except RuntimeError:
            return function()
        return future.result()
