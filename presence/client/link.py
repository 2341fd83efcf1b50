"""Runs a client machine on asyncio or trio: one task connects and reads.

During a connection a second task writes and a third one keeps time; if a function gives tokens, a fourth one
renews them. The first belongs to the event loop and not to the task that starts it, so a client may be closed
by another task than the one that opened it.

Tests: `tests/client/test_handles.py`, `tests/client/test_client.py`.
"""

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

import anyio
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint

from presence.client.errors import PresenceError, error_text
from presence.client.inbox import Inbox
from presence.client.lifecycle import Payload, State
from presence.client.options import OpenStream
from presence.client.pending import Effects, RequestResult, Result
from presence.client.pushes import PushKind
from presence.client.state_machine import ClientMachine
from presence.client.tokens import TokenSource

READ_BYTES = 65_536

T = TypeVar("T")


class Changes:
    """Wakes the tasks that wait for a push of one kind, or for any change; costs nothing if none waits."""

    def __init__(self) -> None:
        self._waiting: dict[PushKind | None, anyio.Event] = {}

    async def wait(self, kind: PushKind | None = None) -> None:
        """Wait until a push of this kind may be there; None: of any kind."""
        if (changed := self._waiting.get(kind)) is None:
            changed = self._waiting[kind] = anyio.Event()
        await changed.wait()

    def notify(self, kind: PushKind) -> None:
        """Wake the tasks that wait for this kind or any at this moment."""
        if self._waiting:
            for each in (kind, None):
                if (changed := self._waiting.pop(each, None)) is not None:
                    changed.set()

    def notify_all(self) -> None:
        """Wake all tasks that wait at this moment."""
        while self._waiting:
            self._waiting.popitem()[1].set()


class Link:
    """Runs a machine over the streams that `open_stream` makes; call `perform` after each change of it.

    Attributes:
        changed: where tasks wait for a push in `inbox`, or for another state.
        failure: the exception that ended the client, if it was none of the client's own errors; None: none.
    """

    def __init__(
        self, machine: ClientMachine, open_stream: OpenStream, source: TokenSource | None, inbox: Inbox
    ) -> None:
        self.machine = machine
        self.inbox = inbox
        self.changed = Changes()
        self.failure: BaseException | None = None
        self.now: Callable[[], float] = anyio.current_time
        protect_from_ctrl_c(Link._run, Link._write, Link._keep_time, Link._renew)
        self._open_stream = open_stream
        self._source = source
        self._waiting: dict[int, anyio.Event] = {}  # pending requests
        self._answers: dict[int, Result] = {}
        self._task: asyncio.Task[None] | None = None  # kept, or the loop might forget it
        self._stopped: anyio.Event
        self._running: anyio.CancelScope
        self._timer: anyio.CancelScope
        self._fetching: anyio.CancelScope | None = None  # a token, while online
        self._outgoing_ready: anyio.Event
        self._token_wanted: anyio.Event

    async def wait_for_answer(self, id: int) -> Payload:
        """Wait for the answer to a request; raise it if it is an error."""
        done = self._waiting[id] = anyio.Event()
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
                self.changed.notify(self.inbox.put(each))
            elif (done := self._waiting.get(each.id)) is not None:
                self._answers[each.id] = each.result
                done.set()
        ended = self.machine.state is State.ENDED
        if ended:
            self.changed.notify_all()
        if self.machine.has_outgoing:
            self._outgoing_ready.set()
        if self.machine.wants_token:
            self._token_wanted.set()
        elif self._fetching is not None:
            self._fetching.cancel()
        if (deadline := self.machine.deadline) != self._timer.deadline:  # or its timer is set again
            self._timer.deadline = deadline
        if ended:
            self._running.cancel()

    def start(self) -> None:
        """Start the tasks, which run until the machine has ended; from here on in an event loop."""
        self._stopped, self._outgoing_ready, self._token_wanted = (anyio.Event() for _ in range(3))
        self._running, self._timer = anyio.CancelScope(), anyio.CancelScope()
        if _is_task_of_asyncio():
            self.now = asyncio.get_running_loop().time  # from any thread, and faster
            self.machine.begin(self.now())
            self._task = asyncio.create_task(self._run(), name="presence client")
            self._task.add_done_callback(lambda _: self._stop_running())  # even if it never began
        else:
            self.machine.begin(self.now())
            trio = sys.modules["trio"]
            trio.lowlevel.spawn_system_task(self._run, name="presence client", context=copy_context())

    async def stop(self) -> None:
        """End the machine without a logout, and wait until no task and no stream is left; raise `failure`."""
        self.perform(self.machine.close())
        with anyio.CancelScope(shield=True):
            await self._stopped.wait()
        if self.failure is not None:
            raise self.failure

    # Tasks

    async def _run(self) -> None:
        """Run until the machine has ended, or until cancelled; then fail all pending requests."""
        try:
            with self._running:
                await self._connect_again_and_again()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # out of a system task of trio it would end the whole program
            self.failure = failure = _alone(error)
            if self._task is not None and not isinstance(failure, Exception):
                raise failure from None
        finally:
            self._stop_running()

    def _stop_running(self) -> None:
        self.perform(self.machine.close(self.failure))
        self._stopped.set()

    async def _connect_again_and_again(self) -> None:
        while self.machine.state is not State.ENDED:
            if self.machine.state is State.WAITING:
                await self._until_due(anyio.sleep_forever)
            elif self.machine.state is State.FETCHING_TOKEN:
                await self._until_due(self._fetch)
            elif (stream := await self._open()) is not None:
                try:
                    await self._run_connection(stream)
                finally:
                    with suppress(OSError, anyio.BrokenResourceError):  # it is lost all the same
                        await anyio.aclose_forcefully(stream)

    async def _fetch(self) -> None:
        """Get a token from the program."""
        token: str | Exception = ""
        try:
            if self._source is not None:
                given = self._source()
                token = await given if inspect.isawaitable(given) else given
        except Exception as error:  # the program's own: the machine reports it
            token = error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            token = RuntimeError("what the token function waited for was cancelled")
        self.perform(self.machine.token_fetched(token, self.now()))

    async def _until_due(self, wait: Callable[[], Awaitable[T]]) -> T | None:
        """Await a call until the machine's deadline, which may move meanwhile; return None after it."""
        with anyio.CancelScope(deadline=self.machine.deadline) as self._timer:
            return await wait()
        await checkpoint()  # after a pause of the program, what has been received is read first
        self.perform(self.machine.tick(self.now()))
        return None

    async def _open(self) -> ByteStream | None:
        try:
            stream = await self._until_due(self._opened_stream)
        except (OSError, UnicodeError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            self.perform(self.machine.disconnected(error_text(error), self.now()))
            return None
        if stream is not None:
            self.machine.established(self.now())
        return stream

    async def _opened_stream(self) -> ByteStream:
        stream = await self._open_stream()
        if not isinstance(stream, ByteStream):  # None would pass for a time-out
            raise TypeError(f"open_stream must return an anyio.abc.ByteStream, not {type(stream).__name__}")
        return stream

    async def _run_connection(self, stream: ByteStream) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write, stream)
            tasks.start_soon(self._keep_time, tasks.cancel_scope)
            if self._source is not None:
                tasks.start_soon(self._renew)
            while self.machine.connected:
                try:
                    data = await stream.receive(READ_BYTES)
                except anyio.EndOfStream:
                    self.perform(self.machine.disconnected("the server closed it", self.now()))
                except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                    # An `OSError` is an alert of TLS, such as the server's refusal of a client certificate.
                    self.perform(self.machine.disconnected(error_text(error), self.now()))
                else:
                    self.perform(self.machine.received(data, self.now()))
            tasks.cancel_scope.cancel()

    async def _keep_time(self, connection: anyio.CancelScope) -> None:
        """Let the machine act when it is due; end a connection that it gives up."""
        # Beside the reading task, because interrupting and repeating a read costs more than this one.
        while self.machine.connected:
            await self._until_due(anyio.sleep_forever)
        connection.cancel()

    async def _write(self, stream: ByteStream) -> None:
        while True:
            if data := self.machine.take_outgoing():
                try:
                    await stream.send(data)
                except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return  # the reading task may still find the reason
                self.machine.written(self.now())
            else:
                self._outgoing_ready = anyio.Event()
                await self._outgoing_ready.wait()

    async def _renew(self) -> None:
        """Get tokens while online, each time the machine wants one."""
        while True:
            if self.machine.wants_token:
                with anyio.CancelScope() as self._fetching:  # `perform` cancels it after the time-out
                    await self._fetch()
                self._fetching = None
            else:
                self._token_wanted = anyio.Event()
                await self._token_wanted.wait()


def _is_task_of_asyncio() -> bool:
    """Whether the caller is a task of asyncio, and not of trio, which may be a guest of its loop."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


def _alone(error: BaseException) -> BaseException:
    """Return the one exception in a group, which a task group makes even of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def protect_from_ctrl_c(*functions: Callable[..., Awaitable[None]]) -> None:
    """Let trio raise Ctrl-C in the program's own tasks only; asyncio never raises it in others."""
    if (trio := sys.modules.get("trio")) is not None:
        for function in functions:
            trio.lowlevel.enable_ki_protection(function)
