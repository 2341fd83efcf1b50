"""Runs a client machine in a thread that connects, reads, writes and keeps time."""

import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from errno import EINPROGRESS
from typing import Any, NamedTuple

from presence.client.errors import PresenceError
from presence.client.machine import ClientMachine
from presence.client.pushes import Inbox
from presence.client.session import Effects, RequestResult
from presence.client.shell import READ_BYTES, error_text
from presence.client.tokens import BlockingTokenSource, Payload, State

READABLE = select.POLLIN
WRITABLE = select.POLLOUT
_WAIT_MAX_S = 3600.0  # poll has an upper bound
_TRY_AGAIN = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
Wait = Callable[[socket.socket, int], None]


class ServerEndpoint(NamedTuple):
    """The address to connect to, with a context for TLS or None."""

    host: str
    port: int
    tls: ssl.SSLContext | None


class BlockingLink:
    """Runs a machine over sockets in a thread of its own, which is started once.

    The machine and its inbox are used only under the lock of `changed`, which is notified of pushes, answers
    and changes of state. Call `perform` after each change of the machine.
    """

    def __init__(
        self,
        machine: ClientMachine,
        server: ServerEndpoint,
        source: BlockingTokenSource | None,
        max_pushes: int,
    ) -> None:
        self.machine = machine
        self.inbox = Inbox(max_pushes)
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="presence client", daemon=True)
        self._server = server
        self._source = source
        self._token_thread: threading.Thread | None = None  # it may block; keepalives go on
        self._answers: dict[int, Payload | PresenceError | None] = {}  # None: not received yet
        self._waiter = SocketWaiter()

    def wait_for_answer(self, id: int) -> Payload:
        """Wait for the answer to a request, under the lock; raise it if it is an error."""
        self._answers[id] = None
        self.wake_thread()
        try:
            self.changed.wait_for(lambda: self._answers[id] is not None)
        finally:
            result = self._answers.pop(id)
        if isinstance(result, PresenceError):
            raise result.with_traceback(None)
        return result or {}

    def perform(self, effects: Effects) -> None:
        """Apply effects of the machine, under the lock."""
        for each in effects:
            if not isinstance(each, RequestResult):
                self.inbox.put(each)
            elif each.id in self._answers:
                self._answers[each.id] = each.result
        if effects or self.machine.state is State.ENDED:
            self.changed.notify_all()

    def wake_thread(self) -> None:
        """Make the thread check the machine for work."""
        self._waiter.interrupt()

    def close(self) -> None:
        """End the machine and the thread, and free their resources."""
        with self.changed:
            self.perform(self.machine.close())
        self.wake_thread()
        self.thread.join()
        with self.changed:
            token_thread = self._token_thread
        if token_thread is not None:
            token_thread.join()
        self._waiter.close()

    # The thread

    def _run(self) -> None:
        try:
            self._run_until_ended()
        finally:  # so that no caller waits forever
            with self.changed:
                self.perform(self.machine.close())

    def _run_until_ended(self) -> None:
        while True:
            with self.changed:
                self._tick()
                state, deadline = self.machine.state, self.machine.deadline
            if state is State.ENDED:
                return
            if state in (State.FETCHING_TOKEN, State.WAITING):
                self._wait(None, 0, deadline)
            elif (sock := self._open(deadline)) is not None:
                with sock:
                    self._run_connection(sock)

    def _tick(self) -> None:
        """Call the machine's tick, and start a token thread if a token is wanted; under the lock."""
        self.perform(self.machine.tick(time.monotonic()))
        if self._source is not None and self.machine.wants_token and self._token_thread is None:
            self._token_thread = threading.Thread(
                target=self._fetch, args=[self._source], name="presence token", daemon=True
            )
            self._token_thread.start()

    def _fetch(self, source: BlockingTokenSource) -> None:
        token: str | Exception
        try:
            token = source()
        except Exception as error:  # the program's own: the machine reports it
            token = error
        with self.changed:
            self.perform(self.machine.token_fetched(token, time.monotonic()))
            self.wake_thread()
            self._token_thread = None  # from here on this thread uses nothing that `close` frees

    def _wait(self, sock: socket.socket | None, events: int, deadline: float) -> None:
        with suppress(TimeoutError, WaitInterrupted):
            self._waiter.wait(sock, events, deadline)

    def _open(self, deadline: float) -> socket.socket | None:
        try:
            sock = open_socket(*self._server, lambda sock, events: self._waiter.wait(sock, events, deadline))
        except WaitInterrupted:
            return None  # by `close`, or by a request, which is handled before the next attempt
        except (OSError, UnicodeError) as error:
            with self.changed:
                self.perform(self.machine.tick(time.monotonic()))  # in case it timed out
                self.perform(self.machine.disconnected(error_text(error), time.monotonic()))
            return None
        with self.changed:
            if self.machine.state is State.ENDED:
                sock.close()
                return None
            self.machine.established(time.monotonic())
        return sock

    def _run_connection(self, sock: socket.socket) -> None:
        unsent = bytearray()
        send_failed = False
        while True:
            with self.changed:
                self._tick()
                if not self.machine.connected:
                    return
                unsent += self.machine.take_outgoing()
                deadline = self.machine.deadline
            try:
                send(sock, unsent)
            except OSError:  # answers to earlier packets may still be readable
                send_failed = True
            if send_failed:
                unsent.clear()
            elif not unsent:
                with self.changed:
                    self.machine.written(time.monotonic())
                    deadline = self.machine.deadline
            self._wait(sock, READABLE | (WRITABLE if unsent else 0), deadline)
            self._read(sock)

    def _read(self, sock: socket.socket) -> None:
        """Read all received bytes."""
        message = "the server closed it"
        try:
            while data := receive(sock):
                with self.changed:
                    self.perform(self.machine.received(data, time.monotonic()))
                    if not self.machine.connected:
                        return
        except OSError as error:
            data, message = b"", error_text(error)
        if data is not None:
            with self.changed:
                self.perform(self.machine.disconnected(message, time.monotonic()))


# Non-blocking sockets, and waiting for them


class WaitInterrupted(Exception):
    """The wait was ended by `SocketWaiter.interrupt`."""


class SocketWaiter:
    """Waits for a socket; another thread can interrupt the wait."""

    def __init__(self) -> None:
        self._inside, self._outside = socket.socketpair()
        self._inside.setblocking(False)
        self._outside.setblocking(False)

    def interrupt(self) -> None:
        """Interrupt the current wait, or else the next one."""
        with suppress(BlockingIOError):  # interrupts are already pending
            self._outside.send(b"!")

    def wait(self, sock: socket.socket | None, events: int, deadline: float) -> None:
        """Wait until `sock` is ready for `events`.

        Raises:
            WaitInterrupted: another thread called `interrupt`.
            TimeoutError: `deadline` has passed, monotonic seconds.
        """
        poll = select.poll()
        poll.register(self._inside, READABLE)
        if sock is not None:
            poll.register(sock, events)
        while True:
            left_s = deadline - time.monotonic()
            ready = poll.poll(min(_WAIT_MAX_S, max(0.0, left_s)) * 1000)
            if any(fd == self._inside.fileno() for fd, _ in ready):
                with suppress(BlockingIOError):
                    self._inside.recv(READ_BYTES)
                raise WaitInterrupted
            if ready:
                return
            if left_s <= 0:
                raise TimeoutError

    def close(self) -> None:
        """Free both ends."""
        self._inside.close()
        self._outside.close()


def open_socket(host: str, port: int, ssl_context: ssl.SSLContext | None, wait: Wait) -> socket.socket:
    """Connect to the first address of `host` that answers. The name lookup cannot be interrupted.

    Raises:
        OSError, UnicodeError: no address could be connected to, or the last one's handshake failed.
    """
    failure: OSError | None = None
    for family, kind, proto, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, proto)
        try:
            _connect(sock, address, wait)
            if ssl_context is not None:
                sock = ssl_context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
                _handshake(sock, wait)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError(f"{host} has no address")


def _connect(sock: socket.socket, address: Any, wait: Wait) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    code = sock.connect_ex(address)
    if code == EINPROGRESS:
        wait(sock, WRITABLE)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def _handshake(sock: ssl.SSLSocket, wait: Wait) -> None:
    while True:
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            wait(sock, READABLE)
        except ssl.SSLWantWriteError:
            wait(sock, WRITABLE)
        else:
            return


def receive(sock: socket.socket) -> bytes | None:
    """Return received bytes, ``b""`` at the end of the stream, None if there are none yet."""
    try:
        return sock.recv(READ_BYTES)
    except _TRY_AGAIN:
        return None


def send(sock: socket.socket, data: bytearray) -> None:
    """Send as much as possible without waiting, and remove it from `data`; raises `OSError`."""
    with suppress(*_TRY_AGAIN):
        while data:
            del data[: sock.send(data)]
