"""A proxy in front of a Redis that answers with an error in its place, or late, or not at all.

    with AnsweringProxy("/run/redis.sock") as proxy:
        node = start(redis=proxy.url)
        proxy.answer("READONLY")      # as a read-only replica does, until `heal`
        proxy.heal()
        assert proxy.answered         # how many commands got that answer

Commands that are not concerned reach the real server, in order with the others. An error in a transaction
discards it, as in Redis. Once a connection has subscribed, what the server sends is passed on as it comes.
"""

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Self, TypeVar

T = TypeVar("T")

SCRIPTS: Final = frozenset({b"EVALSHA", b"EVAL", b"FCALL"})
WRITES: Final = SCRIPTS | {b"HSETNX", b"HSET", b"SET", b"DEL", b"PUBLISH", b"XADD"}
_KEYED: Final = WRITES | {b"HMGET", b"HGETALL", b"HGET", b"ZMSCORE", b"XINFO", b"XRANGE", b"XREAD", b"EXISTS"}
_OF_CONNECTION: Final = frozenset({b"CLIENT", b"HELLO", b"AUTH", b"SELECT", b"QUIT"})

ERRORS: Final[dict[str, tuple[str, frozenset[bytes] | None]]] = {
    "READONLY": ("You can't write against a read only replica.", WRITES),
    "CLUSTERDOWN": ("Hash slot not served", _KEYED),
    "MASTERDOWN": ("Link with MASTER is down and replica-serve-stale-data is set to 'no'.", _KEYED),
    "MOVED": ("0 127.0.0.1:1", _KEYED),
    "ASK": ("0 127.0.0.1:1", _KEYED),
    "TRYAGAIN": ("Multiple keys request during rehashing of slot", _KEYED),
    "LOADING": ("Redis is loading the dataset in memory", None),
    "BUSY": ("Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", None),
    "NOSCRIPT": ("No matching script. Please use EVAL.", frozenset({b"EVALSHA"})),
    "NOPERM": ("this user has no permissions to run the 'evalsha' command", _KEYED),
    "OOM": ("command not allowed when used memory > 'maxmemory'.", WRITES),
    "MISCONF": ("Redis is configured to save RDB snapshots, but it's currently unable to persist.", WRITES),
    "UNKILLABLE": ("Sorry the script already executed write commands against the dataset.", None),
}
"""Each error's text after its code, and the commands that get it; None: all but those of the connection."""

CLOSED: Final = "closed"  # the connection ends instead of an answer
LATE: Final = "late"  # each answer comes after `LATE_S`
LATE_S: Final = 2.5  # above the time-out of a call
CALL_TIMEOUT_S: Final = 10.0
READ_BYTES: Final = 65_536


def piece_end(data: bytes, start: int = 0) -> int:
    """Return where the RESP value ends that begins at `start`; -1: it is not complete."""
    line_end = data.find(b"\r\n", start)
    if line_end < 0:
        return -1
    end = line_end + 2
    kind = data[start : start + 1]
    if kind == b"$":
        size = int(data[start + 1 : line_end])
        end += size + 2 if size >= 0 else 0
        return end if end <= len(data) else -1
    if kind == b"*":
        for _ in range(int(data[start + 1 : line_end])):
            if (end := piece_end(data, end)) < 0:
                return -1
    return end


def words_of(request: bytes) -> list[bytes]:
    """Return the words of one command."""
    return request.split(b"\r\n")[2::2]


class AnsweringProxy:
    """Passes commands on, or answers them itself; for a ``with`` block. Methods may be called by any thread.

    Args:
        path: of the real server's Unix socket.

    Attributes:
        url: for a node's Redis.
        answered: how many commands got the injected answer so far.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.answered = 0
        self._answer: str | None = None
        self._loop = asyncio.new_event_loop()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = "redis://{}:{}".format(*self._listener.getsockname()[:2])
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def answer(self, what: str) -> None:
        """Answer so from now on: an error code of `ERRORS`, `CLOSED` or `LATE`."""
        self._call(lambda: setattr(self, "_answer", what))

    def heal(self) -> None:
        """Pass everything on again."""
        self._call(lambda: setattr(self, "_answer", None))

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _call(self, act: Callable[[], T]) -> T:
        done: Future[T] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(act()))
        return done.result(CALL_TIMEOUT_S)

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, sock=self._listener))
        try:
            self._loop.run_forever()
        finally:
            self._loop.remove_reader(self._listener)  # a closed server leaves open what it has just accepted
            self._loop.run_until_complete(self._end())
            server.close()
            self._loop.close()

    async def _end(self) -> None:
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(tasks)  # others are accepting: then theirs are among `_tasks`
        for writer in self._writers:  # a task may be cancelled before it begins, or while it ends
            writer.close()
        await asyncio.sleep(0)  # transports close their sockets

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_unix_connection(self._path)
            self._writers.add(far_writer)
            connection = _Connection(self, writer, far_writer)
            ways = (connection.take_requests(reader), connection.take_replies(far_reader))
            tasks = [asyncio.ensure_future(each) for each in ways]
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._close(far_writer)
        self._close(writer)

    def _close(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        self._writers.discard(writer)

    def injected(self, command: bytes) -> str | None:
        """Return what to answer a command with; None: it is passed on."""
        if self._answer is None or command in _OF_CONNECTION:
            return None
        if self._answer in ERRORS:
            commands = ERRORS[self._answer][1]
            if commands is not None and command not in commands:
                return None
        return self._answer


class _Connection:
    def __init__(
        self, proxy: AnsweringProxy, writer: asyncio.StreamWriter, far: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._writer = writer
        self._far = far
        # Answers still to be given, in order: None for the server's next; b"" for one that is left out.
        self._due: deque[bytes | None] = deque()
        self._is_subscribed = self._is_in_transaction = self._is_discarded = False
        self._late_until = 0.0

    async def take_requests(self, reader: asyncio.StreamReader) -> None:
        data = b""
        while more := await reader.read(READ_BYTES):
            data += more
            while (end := piece_end(data)) >= 0:
                request, data = data[:end], data[end:]
                if not self._take(request):
                    return
            self._give()

    def _take(self, request: bytes) -> bool:
        """Pass a command on, or answer it; return whether the connection goes on."""
        command = words_of(request)[0].upper()
        if command in {b"SUBSCRIBE", b"PSUBSCRIBE"}:
            self._is_subscribed = True
        answer = self._proxy.injected(command)
        if command == b"EXEC":
            was_discarded, self._is_in_transaction, self._is_discarded = self._is_discarded, False, False
            if was_discarded:
                self._far.write(b"*1\r\n$7\r\nDISCARD\r\n")
                self._due.append(b"-EXECABORT Transaction discarded because of previous errors.\r\n")
                return True
        elif command == b"MULTI":
            self._is_in_transaction = True
        if answer is None or answer == LATE:
            if answer == LATE:
                self._proxy.answered += 1
                self._late_until = asyncio.get_running_loop().time() + LATE_S
            self._far.write(request)
            if not self._is_subscribed:
                self._due.append(None)
            return True
        self._proxy.answered += 1
        if answer == CLOSED:
            return False
        error = f"-{answer} {ERRORS[answer][0]}\r\n".encode()
        self._is_discarded = self._is_in_transaction
        if self._is_subscribed:
            self._writer.write(error)
        else:
            self._due.append(error)
        return True

    def _give(self) -> None:
        """Give the answers that need nothing of the server."""
        while self._due and self._due[0] is not None and not self._due[0].startswith(b"-EXECABORT"):
            self._writer.write(self._due.popleft() or b"")

    async def take_replies(self, reader: asyncio.StreamReader) -> None:
        data = b""
        while more := await reader.read(READ_BYTES):
            await asyncio.sleep(max(0.0, self._late_until - asyncio.get_running_loop().time()))
            data += more
            while (end := piece_end(data)) >= 0:
                reply, data = data[:end], data[end:]
                # In the place of the answer to DISCARD is that to EXEC.
                due = self._due.popleft() if self._due else None
                self._writer.write(due if due is not None else reply)
                self._give()
