"""Logs on standard error that never block the event loop.

Lines go through a bounded queue to a thread that writes them. When the reader of standard error stops
reading, only that thread blocks: the queue fills, and further lines are dropped and counted. Secrets are
replaced and control characters escaped before a line is queued. structlog is loaded by `configure`, not by
importing this module.
"""

import contextlib
import logging
import math
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, Self

from presence.common import threads
from presence.common.redaction import plain
from presence.common.text import console_line, json_event

QUEUE_LINES = 10_000  # a few MB of text; seconds of a very noisy server
CLOSE_TIMEOUT_S = 1.0  # a live reader takes the whole queue in far less
NOTICE_INTERVAL_S = 1.0  # least time between two reports of dropped lines while the queue is not empty
STDERR = 2
LEVELS = ("debug", "info", "warning", "error", "critical")


class LogWriter:
    """Writes log lines to a file descriptor, which it does not close, from one thread.

    Lines of one thread keep their order. `line` never blocks: when `capacity_lines` are queued, the line is
    dropped and counted, and a later line, made by `notice`, reports the number.
    """

    def __init__(
        self,
        fd: int = STDERR,
        *,
        capacity_lines: int = QUEUE_LINES,
        notice: Callable[[int], str] = "{} log lines were dropped".format,
    ) -> None:
        self._output = _Lines(fd)
        self._capacity_lines = capacity_lines
        self._notice = notice
        # SimpleQueue.put takes no lock that a writing thread could hold.
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._count_lock = threading.Lock()
        self._reported = self.dropped = 0
        self._closing = False
        # A daemon: a reader that never reads again must not keep the process from ending.
        self._thread = threading.Thread(target=self._write_all, name="log-writer", daemon=True)
        threads.start(self._thread)

    def line(self, text: str) -> None:
        """Queue a line of log, or drop it when the queue is full or closed."""
        if self._closing or self._queue.qsize() >= self._capacity_lines:
            self._drop()
        else:
            self._queue.put(text)

    def raw_line(self, text: str) -> None:
        """Queue a line that other programs wait for, such as ``ready HOST:PORT``; never dropped for room."""
        self._queue.put(text)

    def close(self) -> None:
        """Write what is queued, for at most `CLOSE_TIMEOUT_S`, then give up; a second call does nothing."""
        if not self._closing:
            self._closing = True
            self._queue.put(None)
            self._thread.join(CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drop(self) -> None:
        with self._count_lock:
            self.dropped += 1

    def _write_all(self) -> None:
        next_notice = 0.0
        while (text := self._queue.get()) is not None:
            if not self._output.write(text):
                self._drop()
            if self._queue.empty() or time.monotonic() >= next_notice:
                next_notice = time.monotonic() + NOTICE_INTERVAL_S
                self._report_dropped()
        self._report_dropped()

    def _report_dropped(self) -> None:
        dropped = self.dropped
        if dropped > self._reported and self._output.write(self._notice(dropped - self._reported)):
            self._reported = dropped


class _Lines:
    """Writes lines to a file descriptor; one that a full disk has cut off ends before the next begins."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_torn = False  # whether the last line has no end

    def write(self, text: str) -> bool:
        """Write a line, however long that takes; False: the reader has gone, or disk or memory is full."""
        try:
            line = text.encode("utf-8", "backslashreplace") + b"\n"
            rest = memoryview(b"\n" + line if self._is_torn else line)
        except MemoryError:
            return False
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # another program that shares the terminal made it non-blocking
                _has_room(self._fd, None)
            except OSError:
                self._is_torn = self._is_torn or len(rest) < len(line)
                return False
        self._is_torn = False
        return True


def _has_room(fd: int, timeout_ms: int | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(timeout_ms))


class DirectWriter:
    """Writes log lines without a thread, for a process that forks; does not close the descriptor.

    A line is written if the reader has room at this moment (a pipe then takes 4 KiB), else it is dropped.
    """

    def __init__(self, fd: int = STDERR) -> None:
        self._fd = fd
        self._output = _Lines(fd)

    def line(self, text: str) -> None:
        """Write a line of log, or drop it."""
        if _has_room(self._fd, 0):
            self.raw_line(text)

    def raw_line(self, text: str) -> None:
        """Write a line that other programs wait for; waits for room."""
        self._output.write(text)


class RateLimited:
    """Logs at most one line per interval and event; the next line has the number of suppressed ones.

    `log` is a structlog logger. `info`, `warning` and `error` are as its methods. `by`: a field of few
    values, each of which has lines of its own.
    """

    def __init__(
        self,
        log: Any,
        *,
        by: str = "",
        interval_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._by = by
        self._interval_s = interval_s
        self._clock = clock
        self._last: dict[tuple[str, object], float] = {}
        self._suppressed: dict[tuple[str, object], int] = {}
        self.info, self.warning, self.error = (
            partial(self._limited, level) for level in ("info", "warning", "error")
        )

    def _limited(self, level: str, event: str, **values: object) -> None:
        now, key = self._clock(), (event, values.get(self._by))
        if now - self._last.get(key, -math.inf) < self._interval_s:
            self._suppressed[key] = self._suppressed.get(key, 0) + 1
            return
        self._last[key] = now
        if count := self._suppressed.pop(key, 0):
            values["suppressed"] = count
        getattr(self._log, level)(event, **values)


def redact(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace secrets in an event, and convert its values to plain data (a structlog processor)."""
    return {str(key): plain(value, key) for key, value in event.items()}


def configure(log_format: str = "auto", level: str = "info", *, fd: int = STDERR) -> LogWriter:
    """Send the log lines of structlog and of the standard library to `fd`, through the returned writer.

    `log_format`: ``console``, ``json``, or ``auto``: console on a terminal, JSON otherwise. `level`: the
    least severe level that is written.
    """
    render, stamp = _renderer(log_format, fd), _structlog().processors.TimeStamper(fmt="iso", utc=True)

    def notice(count: int) -> str:
        event = {"event": "log lines dropped", "level": "warning", "count": count}
        return render(stamp(None, "warning", event))

    writer = LogWriter(fd, notice=notice)
    _route(writer, render, level)
    return writer


def configure_directly(log_format: str = "auto", level: str = "info", *, fd: int = STDERR) -> DirectWriter:
    """Do as `configure` does, without a thread."""
    writer = DirectWriter(fd)
    _route(writer, _renderer(log_format, fd), level)
    return writer


def _renderer(log_format: str, fd: int) -> Callable[[Mapping[str, Any]], str]:
    if log_format == "auto":
        log_format = "console" if os.isatty(fd) else "json"
    return console_line if log_format == "console" else json_event


def _route(writer: LogWriter | DirectWriter, render: Callable[[Mapping[str, Any]], str], level: str) -> None:
    structlog, number = _structlog(), getattr(logging, level.upper())
    output = SimpleNamespace(**dict.fromkeys(LEVELS, writer.line))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            redact,
            lambda _logger, _method, event: render(event),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_names: output,
        # A cached logger would go on writing to the writer of an earlier configuration.
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[_Bridge(structlog.get_logger())], level=number, force=True)


def _structlog() -> Any:
    """Load structlog without rich, which it would import if installed: 9 MB that no log line needs."""
    rich: Any = sys.modules.setdefault("rich", None)  # type: ignore[arg-type] # makes its import fail
    try:
        import structlog  # noqa: PLC0415 - loads for 0.1 s; readers need none of it
    finally:
        if rich is None:
            del sys.modules["rich"]
    return structlog


class _Bridge(logging.Handler):
    """Passes on lines logged with the standard library, whose own handlers write and may block."""

    def __init__(self, log: Any) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(TypeError, ValueError):  # arguments that do not fit their format
            level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
            self._log.log(level, record.getMessage(), logger=record.name, exc_info=record.exc_info)
