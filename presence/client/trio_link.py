"""Runs a client machine on trio: one task connects, reads and keeps time.

During a connection a second task writes, and a third one renews tokens.
"""

import inspect
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import trio
from trio.abc import Stream

from presence.client.errors import PresenceError
from presence.client.machine import ClientMachine
from presence.client.pushes import Inbox
from presence.client.session import Effects, RequestResult, Result
from presence.client.shell import READ_BYTES, error_text
from presence.client.tokens import Payload, State, TokenSource

OpenStream = Callable[[], Awaitable[Stream]]
T = TypeVar("T")


class TrioLink:
    """Runs a machine over the streams that `open_stream` makes; call `perform` after each change of it.

    `changed` parks tasks that wait for a push in `inbox`, or for another state.
    """

    def __init__(
        self, machine: ClientMachine, open_stream: OpenStream, source: TokenSource | None, max_pushes: int
    ) -> None:
        self.machine = machine
        self.inbox = Inbox(max_pushes)
        self.changed = trio.lowlevel.ParkingLot()
        self._open_stream = open_stream
        self._source = source
        self._waiting: dict[int, trio.Event] = {}  # pending requests
        self._answers: dict[int, Result] = {}
        self._running = trio.CancelScope()
        self._timer = trio.CancelScope()
        self._fetching = trio.CancelScope()
        self._outgoing_ready = trio.Event()
        self._token_wanted = trio.Event()

    async def wait_for_answer(self, id: int) -> Payload:
        """Wait for the answer to a request; raise it if it is an error."""
        done = self._waiting[id] = trio.Event()
        self.perform([])
        try:
            await done.wait()
        finally:
            del self._waiting[id]
            result = self._answers.pop(id, {})
        if isinstance(result, PresenceError):
            raise result.with_traceback(None)
        return result

    def perform(self, effects: Effects) -> None:
        """Apply effects of the machine, and wake the tasks that have work."""
        for each in effects:
            if not isinstance(each, RequestResult):
                self.inbox.put(each)
            elif (done := self._waiting.get(each.id)) is not None:
                self._answers[each.id] = each.result
                done.set()
        ended = self.machine.state is State.ENDED
        if effects or ended:
            self.changed.unpark_all()
        if self.machine.has_outgoing:
            self._outgoing_ready.set()
        if self.machine.wants_token:
            self._token_wanted.set()
        else:
            self._fetching.cancel()
        self._timer.deadline = self.machine.deadline
        if ended:
            self._running.cancel()

    # Tasks; Ctrl-C is left to those of the program

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Run until the machine has ended, or until cancelled."""
        with self._running:
            while self.machine.state is not State.ENDED:
                if self.machine.state is State.WAITING:
                    await self._until_due(trio.sleep_forever)
                elif self.machine.state is State.FETCHING_TOKEN:
                    await self._until_due(self._fetch)
                elif (stream := await self._open()) is not None:
                    try:
                        await self._run_connection(stream)
                    finally:
                        await trio.aclose_forcefully(stream)

    async def _fetch(self) -> None:
        """Get a token from the program."""
        token: str | Exception = ""
        try:
            if self._source is not None:
                given = self._source()
                token = await given if inspect.isawaitable(given) else given
        except Exception as error:  # the program's own: the machine reports it
            token = error
        self.perform(self.machine.token_fetched(token, trio.current_time()))

    async def _until_due(self, wait: Callable[[], Awaitable[T]]) -> T | None:
        """Await a call until the machine's deadline, which may move meanwhile; return None after it."""
        with trio.CancelScope(deadline=self.machine.deadline) as self._timer:
            return await wait()
        self.perform(self.machine.tick(trio.current_time()))
        return None

    async def _open(self) -> Stream | None:
        try:
            stream = await self._until_due(self._open_stream)
        except (OSError, UnicodeError, trio.BrokenResourceError) as error:
            self.perform(self.machine.disconnected(error_text(error), trio.current_time()))
            return None
        if stream is not None:
            self.machine.established(trio.current_time())
        return stream

    async def _run_connection(self, stream: Stream) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, stream)
            nursery.start_soon(self._renew)
            while self.machine.connected:
                try:
                    data = await self._until_due(partial(stream.receive_some, READ_BYTES))
                except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                    self.perform(self.machine.disconnected(error_text(error), trio.current_time()))
                    break
                if data:
                    self.perform(self.machine.received(data, trio.current_time()))
                elif data is not None:
                    self.perform(self.machine.disconnected("the server closed it", trio.current_time()))
            nursery.cancel_scope.cancel()

    @trio.lowlevel.enable_ki_protection
    async def _write(self, stream: Stream) -> None:
        while True:
            self._outgoing_ready = trio.Event()
            if data := self.machine.take_outgoing():
                try:
                    await stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return  # the reading task may still find the reason
                self.machine.written(trio.current_time())
            else:
                await self._outgoing_ready.wait()

    @trio.lowlevel.enable_ki_protection
    async def _renew(self) -> None:
        """Get tokens while online, each time the machine wants one."""
        while True:
            if self.machine.wants_token:
                with trio.CancelScope() as self._fetching:  # `perform` cancels it after the time-out
                    await self._fetch()
            else:
                self._token_wanted = trio.Event()
                await self._token_wanted.wait()


async def open_tcp(host: str, port: int, ssl_context: ssl.SSLContext | None) -> Stream:
    """Connect over TCP, and over TLS if there is a context.

    Raises:
        OSError, UnicodeError, trio.BrokenResourceError: no address could be connected to.
    """
    stream = await trio.open_tcp_stream(host, port)
    if ssl_context is None:
        return stream
    secured = trio.SSLStream(stream, ssl_context, server_hostname=host)
    try:
        await secured.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(secured)
        raise
    return secured
