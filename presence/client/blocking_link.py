"""What keeps a client alive without an event loop: a thread that connects, reads, writes and keeps time."""

import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from presence.client import wire
from presence.client.errors import PresenceError
from presence.client.inbox import Inbox
from presence.client.machine import Machine
from presence.client.session import Answer, Caused
from presence.client.states import State
from presence.client.tokens import BlockingTokenSource
from presence.client.verbs import Payload, why


class Server(NamedTuple):
    """Where to connect to; with a context over TLS."""

    host: str
    port: int
    tls: ssl.SSLContext | None


class Link:
    """Runs a machine over sockets, in a thread of its own, with tokens from `source`.

    Attributes:
        machine: used under the lock of `news` only; after each change of it, call `perform`.
        inbox: what came and nobody took yet; under the same lock.
        news: told of pushes, answers and another state.
        thread: start it once.
    """

    def __init__(
        self, machine: Machine, server: Server, source: BlockingTokenSource | None, max_pushes: int
    ) -> None:
        self.machine = machine
        self.inbox = Inbox(max_pushes)
        self.news = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="presence client", daemon=True)
        self._server = server
        self._source = source
        self._fetching: threading.Thread | None = None  # the source may block, and beats must go on
        self._answers: dict[int, Payload | PresenceError | None] = {}  # None: not here yet
        self._waiter = wire.Waiter()

    def answer(self, id: int) -> Payload:
        """Wait for the answer to a request, under the lock; raise it if it is an error."""
        self._answers[id] = None
        self.wake()
        try:
            self.news.wait_for(lambda: self._answers[id] is not None)
        finally:
            result = self._answers.pop(id)
        if isinstance(result, PresenceError):
            raise result.with_traceback(None)
        return result or {}

    def perform(self, caused: Caused) -> None:
        """Hand on what the machine caused, under the lock."""
        for each in caused:
            if not isinstance(each, Answer):
                self.inbox.put(each)
            elif each.id in self._answers:
                self._answers[each.id] = each.result
        if caused or self.machine.state is State.ENDED:
            self.news.notify_all()

    def wake(self) -> None:
        """Let the thread look at what the machine wants now."""
        self._waiter.interrupt()

    def close(self) -> None:
        """End the machine and the thread, and free what they held."""
        with self.news:
            self.perform(self.machine.close())
        self.wake()
        self.thread.join()
        with self.news:
            fetching = self._fetching
        if fetching is not None:
            fetching.join()
        self._waiter.close()

    # The thread

    def _run(self) -> None:
        try:
            self._live()
        finally:  # whatever happens here, no caller waits for ever
            with self.news:
                self.perform(self.machine.close())

    def _live(self) -> None:
        while True:
            with self.news:
                self._tick()
                state, deadline = self.machine.state, self.machine.deadline
            if state is State.ENDED:
                return
            if state in (State.FETCHING_TOKEN, State.WAITING):
                self._rest(None, 0, deadline)
            elif (sock := self._open(deadline)) is not None:
                with sock:
                    self._converse(sock)

    def _tick(self) -> None:
        """Look at the clock, and have a token fetched if one is wanted and none is on its way; locked."""
        self.perform(self.machine.tick(time.monotonic()))
        if self._source is not None and self.machine.wants_token and self._fetching is None:
            self._fetching = threading.Thread(
                target=self._fetch, args=[self._source], name="presence token", daemon=True
            )
            self._fetching.start()

    def _fetch(self, source: BlockingTokenSource) -> None:
        token: str | Exception
        try:
            token = source()
        except Exception as error:  # the program's own, whatever it is: the machine tells it
            token = error
        with self.news:
            self.perform(self.machine.fetched(token, time.monotonic()))
            self.wake()
            self._fetching = None  # and with it this thread needs nothing that `close` frees

    def _rest(self, sock: socket.socket | None, events: int, deadline: float) -> None:
        with suppress(TimeoutError, wire.Interrupted):
            self._waiter.wait(sock, events, deadline)

    def _open(self, deadline: float) -> socket.socket | None:
        try:
            sock = wire.open_socket(
                *self._server, lambda sock, events: self._waiter.wait(sock, events, deadline)
            )
        except wire.Interrupted:
            return None  # by `close`; whatever else it was is looked at before the next attempt
        except (OSError, UnicodeError) as error:
            with self.news:
                self.perform(self.machine.tick(time.monotonic()))  # knows best if the time is over
                self.perform(self.machine.disconnected(why(error), time.monotonic()))
            return None
        with self.news:
            if self.machine.state is State.ENDED:
                sock.close()
                return None
            self.machine.established(time.monotonic())
        return sock

    def _converse(self, sock: socket.socket) -> None:
        unsent = bytearray()
        deaf = False
        while True:
            with self.news:
                self._tick()
                if not self.machine.connected:
                    return
                unsent += self.machine.take_outgoing()
                deadline = self.machine.deadline
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
                with self.news:
                    self.perform(self.machine.received(data, time.monotonic()))
                    if not self.machine.connected:
                        return
        except OSError as error:
            data, message = b"", why(error)
        if data is not None:
            with self.news:
                self.perform(self.machine.disconnected(message, time.monotonic()))
