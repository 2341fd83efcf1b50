"""The client without an event loop, for scripts: a background thread runs it, and calls block."""

import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self

from presence import protocol
from presence.client.blocking_link import BlockingLink, ServerEndpoint
from presence.client.errors import ConnectionLost, Ended, NotConnected, PresenceError, RequestError
from presence.client.pushes import Push, UserState, user_states
from presence.client.session import ASK_EVERY
from presence.client.shell import MAX_PUSHES, REQUEST_TIMEOUT_S, delivered_count, new_machine, tls_context
from presence.client.tokens import BlockingTokenSource, Payload, State, Statistics
from presence.protocol import Packet


@contextmanager
def connect_blocking(
    host: str,
    port: int,
    *,
    uid: str | None = None,
    device: str | None = None,
    token: str | BlockingTokenSource | None = None,
    idle_timeout: float | None = None,
    meta: Mapping[str, Any] | None = None,
    status: str | None = None,
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
    login = {"uid": uid, "device": device, "idle_timeout": idle_timeout, "meta": meta, "status": status}
    server = f"{host}:{port}"
    machine = new_machine(login, token, time.monotonic(), server=server, wait=wait, ask_every=ask_every)
    source = None if isinstance(token, str) else token
    link = BlockingLink(machine, ServerEndpoint(host, port, tls_context(tls)), source, max_pushes)
    client = BlockingClient(link, request_timeout)
    try:
        link.thread.start()
        if wait:
            client.wait_online()
        yield client
        if client.state is not State.ENDED:
            with suppress(RequestError, Ended):  # the client ends anyway
                client.logout()
    finally:
        link.close()


class BlockingClient:
    """A client that `connect_blocking` runs; every method may be called from any thread.

    ``for push in client`` gives the pushes in order. The loop ends after a logout or `close`; it raises
    `LoginRefused`, `Replaced` or another `Ended` when the server has ended the client for good. Requests
    raise `NotConnected` while the client is not logged in.
    """

    def __init__(self, link: BlockingLink, request_timeout_s: float) -> None:
        self._link = link
        self._request_timeout_s = request_timeout_s

    # Requests

    def send_message(self, to: str, body: Any, *, retry: bool = True) -> int:
        """Send `body` to all sessions of a user; return their number. See `Client.send_message`."""
        return delivered_count(self._request(protocol.message(to, body), retries=retry))

    def query(self, uids: Iterable[str]) -> dict[str, UserState]:
        """Return the states of at most 500 users."""
        return user_states(self._request(protocol.query(uids)))

    def watch(self, uids: Iterable[str]) -> dict[str, UserState]:
        """Return the states of at most 500 users; `PresenceChanged` follows. See `Client.watch`."""
        with self._link.changed:
            machine = self._link.machine
            id = machine.request(protocol.watch(uids), self._request_timeout_s, time.monotonic())
            try:
                answer = self._link.wait_for_answer(id)
            except BaseException:  # Ctrl-C too
                machine.abandon_request(id)
                self._link.wake_thread()
                raise
            return machine.persistent_state.watches.newest(user_states(answer))

    def watch_nowait(self, uids: Iterable[str]) -> None:
        """Watch users from now on, logged in or not. See `Client.watch_nowait`."""
        with self._link.changed:
            self._link.machine.watch_nowait(list(uids), time.monotonic())
        self._link.wake_thread()

    def unwatch(self, uids: Iterable[str] | None = None) -> None:
        """Stop watching some users, or all. See `Client.unwatch`."""
        with self._link.changed:
            given = None if uids is None else list(uids)
            id = self._link.machine.unwatch(given, self._request_timeout_s, time.monotonic())
            if id is not None:
                with suppress(ConnectionLost):
                    self._link.wait_for_answer(id)

    def update(
        self, *, meta: Mapping[str, Any] | None = None, token: str | None = None, status: str | None = None
    ) -> None:
        """Change the given fields, also for later logins: meta, token or status. See `Client.update`."""
        self._request(protocol.update(meta=meta, token=token, status=status))

    def away(self) -> None:
        """Show the user as away, until `back`: ``update(status="away")``."""
        self.update(status="away")

    def back(self) -> None:
        """Show the user as online again: ``update(status="online")``."""
        self.update(status="online")

    def log_in_with(
        self, *, token: str | None = None, meta: Mapping[str, Any] | None = None, status: str | None = None
    ) -> None:
        """Change what later logins carry. See `Client.log_in_with`."""
        with self._link.changed:
            self._link.machine.persistent_state.log_in_with(token=token, meta=meta, status=status)

    def logout(self, reason: str | None = None) -> None:
        """Log out: the user is offline immediately, and the client has ended. See `Client.logout`."""
        with self._link.changed:
            try:
                id = self._link.machine.log_out(reason, time.monotonic())
            except NotConnected:
                self._link.perform([])
                self._link.wake_thread()
                raise
            self._link.wait_for_answer(id)

    def close(self) -> None:
        """End without a logout, as if the network broke: the user is offline after the server's grace."""
        with self._link.changed:
            self._link.perform(self._link.machine.close())
        self._link.wake_thread()

    # State

    @property
    def state(self) -> State:
        """The state of the client."""
        with self._link.changed:
            return self._link.machine.state

    @property
    def watched(self) -> dict[str, UserState]:
        """The newest known state of each watched user. See `Client.watched`."""
        with self._link.changed:
            return self._link.machine.persistent_state.watches.states()

    def statistics(self) -> Statistics:
        """Return counters since the start."""
        with self._link.changed:
            return self._link.machine.statistics(self._link.inbox)

    def wait_online(self, timeout: float | None = None) -> None:
        """Wait until the client is logged in; raises `Ended` if it never will be, or `TimeoutError`."""
        settled = (State.ONLINE, State.ENDED)
        with self._link.changed:
            if not self._link.changed.wait_for(lambda: self._link.machine.state in settled, timeout):
                raise TimeoutError("not online yet")
            if self._link.machine.state is State.ENDED:
                raise self._link.machine.end_error().with_traceback(None)

    def receive(self, timeout: float | None = None) -> Push:
        """Return the next push.

        Raises:
            TimeoutError: none came within `timeout` seconds.
            Ended: no more will come; `LoginRefused`, `Replaced` … if the server ended the client.
        """
        link = self._link
        with link.changed:
            if not link.changed.wait_for(
                lambda: len(link.inbox) or link.machine.state is State.ENDED, timeout
            ):
                raise TimeoutError("no push came in time")
            if len(link.inbox):
                return link.inbox.pop()
            raise link.machine.end_error().with_traceback(None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Push:
        try:
            return self.receive()
        except PresenceError:
            if self._link.machine.error is None:
                raise StopIteration from None
            raise

    def _request(self, packet: Packet, *, retries: bool = False) -> Payload:
        with self._link.changed:
            now = time.monotonic()
            id = self._link.machine.request(packet, self._request_timeout_s, now, retries=retries)
            return self._link.wait_for_answer(id)
