"""The client without an event loop, for scripts: a thread keeps it alive, the caller's threads block."""

import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self

import protocol
from presence.client import wire
from presence.client.errors import Ended, Offline, PresenceError, RequestError
from presence.client.machine import Machine, State
from presence.client.pacing import ASK_EVERY
from presence.client.pushes import Push, UserState
from presence.client.session import Answer, Caused
from presence.client.verbs import (
    MAX_PUSHES,
    REQUEST_TIMEOUT_S,
    Payload,
    Statistics,
    delivered,
    states,
    why,
)
from protocol import Packet


@contextmanager
def connect_blocking(
    host: str,
    port: int,
    *,
    uid: str | None = None,
    device: str | None = None,
    token: str | None = None,
    idle_timeout: float | None = None,
    meta: Mapping[str, Any] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    wait: bool = True,
    request_timeout: float = REQUEST_TIMEOUT_S,
    max_pushes: int = MAX_PUSHES,
    ask_every: int = ASK_EVERY,
) -> Iterator["BlockingClient"]:
    """Be online for the length of a ``with`` block. Arguments and errors are those of `connect`.

    Leaving the block logs out; leaving it by an exception only closes the connection. Afterwards the
    thread has ended and no socket is left. Only the look-up of the server's name cannot be cut short.
    """
    login = protocol.login(
        uid, device=device, token=token, idle_timeout=idle_timeout, meta=meta, v=protocol.VERSION
    )
    machine = Machine(login, time.monotonic(), persistent=not wait, ask_every=ask_every)
    client = BlockingClient(machine, _Server(host, port, ssl_context), request_timeout, max_pushes)
    try:
        client._thread.start()
        if wait:
            client.wait_online()
        yield client
        if client.state is not State.ENDED:
            with suppress(RequestError, Ended):  # it ends, and cannot say so
                client.logout()
    finally:
        client.close()
        client._thread.join()
        client._waiter.close()


class _Server:
    """Where to connect to."""

    def __init__(self, host: str, port: int, ssl_context: ssl.SSLContext | None) -> None:
        self.host = host
        self.port = port
        self.ssl_context = ssl_context


class BlockingClient:
    """A client that `connect_blocking` runs; every method may be called from any thread.

    ``for push in client`` takes what comes, in order. The loop ends after a logout or `close`; it raises
    `LoginRefused`, `Replaced` or another `Ended` when the server has ended the client for good. Requests
    raise `Offline` while the client is not logged in.
    """

    def __init__(self, machine: Machine, server: _Server, request_timeout_s: float, max_pushes: int) -> None:
        self._machine = machine  # only used under the lock of `_news`
        self._server = server
        self._request_timeout_s = request_timeout_s
        self._max_pushes = max_pushes
        self._pushes: deque[Push] = deque()
        self._dropped = 0
        self._answers: dict[int, Payload | PresenceError | None] = {}  # None: not here yet
        self._news = threading.Condition()
        self._waiter = wire.Waiter()
        self._thread = threading.Thread(target=self._run, name="presence client", daemon=True)

    # Requests

    def send_message(self, to: str, body: Any) -> int:
        """Send `body` to all sessions of a user; return their number. See `Client.send_message`."""
        return delivered(self._ask(protocol.message(to, body)))

    def query(self, uids: Iterable[str]) -> dict[str, UserState]:
        """Return the states of at most 500 users."""
        return states(self._ask(protocol.query(uids)))

    def watch(self, uids: Iterable[str]) -> dict[str, UserState]:
        """Return the states of users; `PresenceChanged` follows for each change on this connection."""
        return states(self._ask(protocol.watch(uids)))

    def unwatch(self, uids: Iterable[str] | None = None) -> None:
        """Stop watching some users, or all."""
        self._ask(protocol.unwatch(uids))

    def update(
        self, *, meta: Mapping[str, Any] | None = None, token: str | None = None, status: str | None = None
    ) -> None:
        """Change what is given: meta, token (both also of later logins) or status."""
        self._ask(protocol.update(meta=meta, token=token, status=status))
        self.log_in_with(token=token, meta=meta)

    def log_in_with(self, *, token: str | None = None, meta: Mapping[str, Any] | None = None) -> None:
        """Change what later logins carry. See `Client.log_in_with`."""
        with self._news:
            self._machine.log_in_with(token=token, meta=meta)

    def logout(self, reason: str | None = None) -> None:
        """Log out: the user is offline at once, and the client has ended. See `Client.logout`."""
        with self._news:
            try:
                id = self._machine.log_out(reason, time.monotonic())
            except Offline:
                self._perform([])
                self._waiter.interrupt()
                raise
            self._answer(id)

    def close(self) -> None:
        """End without a logout, as if the network broke: the user is offline after the server's grace."""
        with self._news:
            self._perform(self._machine.close())
        self._waiter.interrupt()

    # State

    @property
    def state(self) -> State:
        """Where the client stands."""
        with self._news:
            return self._machine.state

    def statistics(self) -> Statistics:
        """Return counters since the start."""
        with self._news:
            return Statistics.of(self._machine, len(self._pushes), self._dropped)

    def wait_online(self, timeout: float | None = None) -> None:
        """Wait until the client is logged in.

        Raises:
            Ended, LoginRefused, Unreachable: it never will be.
            TimeoutError: it was not within `timeout` seconds.
        """
        settled = (State.ONLINE, State.ENDED)
        with self._news:
            if not self._news.wait_for(lambda: self._machine.state in settled, timeout):
                raise TimeoutError("not online yet")
            if self._machine.state is State.ENDED:
                raise self._machine.over().with_traceback(None)

    def receive(self, timeout: float | None = None) -> Push:
        """Return the next push.

        Raises:
            TimeoutError: none came within `timeout` seconds.
            Ended: there will be none; `LoginRefused`, `Replaced` … where the server ended the client.
        """
        with self._news:
            if not self._news.wait_for(lambda: self._pushes or self._machine.state is State.ENDED, timeout):
                raise TimeoutError("no push came in time")
            if self._pushes:
                return self._pushes.popleft()
            raise self._machine.over().with_traceback(None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Push:
        try:
            return self.receive()
        except PresenceError:
            if self._machine.error is None:
                raise StopIteration from None
            raise

    # Between the machine and the callers; all under the lock

    def _ask(self, packet: Packet) -> Payload:
        with self._news:
            return self._answer(self._machine.request(packet, self._request_timeout_s, time.monotonic()))

    def _answer(self, id: int) -> Payload:
        self._answers[id] = None
        self._waiter.interrupt()
        try:
            self._news.wait_for(lambda: self._answers[id] is not None)
        finally:
            result = self._answers.pop(id)
        if isinstance(result, PresenceError):
            raise result.with_traceback(None)
        return result or {}

    def _perform(self, caused: Caused) -> None:
        for each in caused:
            if isinstance(each, Answer):
                if each.id in self._answers:
                    self._answers[each.id] = each.result
                continue
            if len(self._pushes) >= self._max_pushes:
                self._pushes.popleft()
                self._dropped += 1
            self._pushes.append(each)
        if caused or self._machine.state is State.ENDED:
            self._news.notify_all()

    # The thread

    def _run(self) -> None:
        try:
            self._live()
        finally:  # whatever happens here, no caller waits for ever
            with self._news:
                self._perform(self._machine.close())

    def _live(self) -> None:
        while True:
            with self._news:
                self._perform(self._machine.tick(time.monotonic()))
                state, deadline = self._machine.state, self._machine.deadline
            if state is State.ENDED:
                return
            if state is State.WAITING:
                self._rest(None, 0, deadline)
            elif (sock := self._open(deadline)) is not None:
                with sock:
                    self._converse(sock)

    def _rest(self, sock: socket.socket | None, events: int, deadline: float) -> None:
        with suppress(TimeoutError, wire.Interrupted):
            self._waiter.wait(sock, events, deadline)

    def _open(self, deadline: float) -> socket.socket | None:
        server = self._server
        try:
            sock = wire.open_socket(
                server.host,
                server.port,
                server.ssl_context,
                lambda sock, events: self._waiter.wait(sock, events, deadline),
            )
        except wire.Interrupted:
            return None  # by `close`; whatever else it was is looked at before the next attempt
        except (OSError, UnicodeError) as error:
            with self._news:
                self._perform(self._machine.tick(time.monotonic()))  # knows best if the time is over
                self._perform(self._machine.disconnected(why(error), time.monotonic()))
            return None
        with self._news:
            if self._machine.state is State.ENDED:
                sock.close()
                return None
            self._machine.established(time.monotonic())
        return sock

    def _converse(self, sock: socket.socket) -> None:
        unsent = bytearray()
        deaf = False
        while True:
            with self._news:
                self._perform(self._machine.tick(time.monotonic()))
                if not self._machine.connected:
                    return
                unsent += self._machine.take_outgoing()
                deadline = self._machine.deadline
            try:
                wire.send(sock, unsent)
            except OSError:  # the answer to what was sent before may still be there to be read
                deaf = True
            if deaf:
                unsent.clear()
            self._rest(sock, wire.READABLE | (wire.WRITABLE if unsent else 0), deadline)
            self._read(sock)

    def _read(self, sock: socket.socket) -> None:
        """Read all that lies there."""
        message = "the server closed it"
        try:
            while data := wire.receive(sock):
                with self._news:
                    self._perform(self._machine.received(data, time.monotonic()))
                    if not self._machine.connected:
                        return
        except OSError as error:
            data, message = b"", why(error)
        if data is not None:
            with self._news:
                self._perform(self._machine.disconnected(message, time.monotonic()))
