"""The watcher of an embedded Redis: restarts one that exits, and kills one that no longer answers.

A restarted server listens at the same address, so all its clients reconnect. With a data directory it has
its data again. Without one it is empty, as a Redis that has lost its data: the nodes write their sessions
again, and the events kept so far are lost. Another start does not help a server that repeatedly exits before
it answers: then this process has to end, so that its service manager and an operator learn of it.
"""

import math
import socket
import time
from contextlib import suppress
from typing import Final

import structlog

from presence.common.backoff import backoff_s
from presence.common.files import close_after_fork
from presence.common.scarcity import scarcity
from presence.prefork.arbiter import CannotContinue, exit_fields
from presence.prefork.control_pipe import SilenceWatch, interval_s
from presence.store.embedded import EmbeddedRedis

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_LIMIT_S: Final = 30.0
LONG_LIFE_S: Final = 60.0  # after so long a run the restart is immediate again
STARTING_INTERVAL_S: Final = 0.1  # between two looks whether a started server answers
MAX_FAILED_STARTS: Final = 5  # in a row, each without an answer; they take some eight seconds
_ANSWER_BYTES: Final = 4096
_PING: Final = b"PING\r\n"

log = structlog.get_logger("presence.server.embedded")


class EmbeddedSupervisor:
    """Supervises one server, from the thread that started it; `supervise` never blocks."""

    def __init__(self, redis: EmbeddedRedis, hang_timeout_s: float) -> None:
        self._redis = redis
        self._hang_timeout_s = hang_timeout_s
        self._interval_s = interval_s(hang_timeout_s)
        self._started_at = time.monotonic()
        self._start_at = 0.0  # when the next process is due, while there is none
        self._failures = 0  # consecutive exits after a short life
        self._failed_starts = 0  # those of them before the first answer
        self._is_running = True  # whether the exit of its process has not been noticed yet
        self._has_answered = True  # the first process has: its starter waited for that
        self._probe: socket.socket | None = None
        self._is_asked = False  # whether an answer is due
        self._watch = SilenceWatch(hang_timeout_s, self._started_at)
        self._watch.heartbeat()

    def supervise(self) -> float:
        """Restart the server if it has exited, with a delay if it keeps exiting, and kill it if it hangs.

        Call it about once per second.

        Returns:
            Within how many seconds to call this again.

        Raises:
            CannotContinue: it exits at each start.
        """
        if self._is_running:
            status = self._redis.process.poll()
            if status is None:
                self._check_answers()
                return self._interval_s if self._has_answered else min(self._interval_s, STARTING_INTERVAL_S)
            self._on_exit(status)
        if time.monotonic() >= self._start_at:
            self._start()
        return STARTING_INTERVAL_S if self._is_running else max(0.0, self._start_at - time.monotonic())

    def _on_exit(self, status: int) -> None:
        now = time.monotonic()
        uptime_s = now - self._started_at
        self._close_probe()
        self._is_running = False
        self._failures = 1 if uptime_s >= LONG_LIFE_S else self._failures + 1
        self._failed_starts = 0 if self._has_answered else self._failed_starts + 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            log.error(
                "embedded Redis cannot be restarted", **exit_fields(status), output=self._redis.last_lines()
            )
            raise CannotContinue("embedded Redis")
        pause_s = (
            backoff_s(self._failures - 2, BACKOFF_FIRST_S, BACKOFF_LIMIT_S) if self._failures > 1 else 0.0
        )
        self._start_at = now + pause_s
        log.error(
            "embedded Redis exited, restarting",
            **exit_fields(status),
            uptime_s=round(uptime_s, 1),
            pause_s=pause_s,
            is_data_lost=self._has_answered and not self._redis.keeps_data,
        )

    def _start(self) -> None:
        now = time.monotonic()
        try:
            self._redis.restart()
        except (OSError, MemoryError) as error:  # out of memory or processes: clients are served meanwhile
            self._start_at = now + backoff_s(self._failures, BACKOFF_FIRST_S, BACKOFF_LIMIT_S)
            self._failures += 1
            log.error("cannot start embedded Redis", error=scarcity(error) or str(error))  # noqa: TRY400
            return
        self._is_running, self._has_answered, self._started_at = True, False, now
        self._watch = SilenceWatch(self._hang_timeout_s, now)

    def _check_answers(self) -> None:
        """Ask for a sign of life, and look whether the last one asked for has come."""
        now = time.monotonic()
        answer = self._take_answer()
        if answer:
            self._watch.heartbeat()  # also if it is loading its data
            self._is_asked = False
            if not self._has_answered and answer.startswith(b"+PONG"):
                self._has_answered = True
                log.info("embedded Redis restarted", took_s=round(now - self._started_at, 1))
        if self._watch.is_hung(now):
            log.error("embedded Redis hung, killing it", silent_s=round(self._watch.silent_s, 1))
            self._redis.process.kill()
            self._watch = SilenceWatch(math.inf, now)  # log it only once
        if not self._is_asked:
            self._ask()

    def _ask(self) -> None:
        try:
            if self._probe is None:
                self._probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                close_after_fork(self._probe)
                self._probe.setblocking(False)
                self._probe.connect(self._redis.path)
            self._probe.send(_PING)
            self._is_asked = True
        except OSError as error:  # it does not listen yet, or its queue is full: that is silence
            self._close_probe()
            if scarcity(error) and not isinstance(error, BlockingIOError):
                self._watch.silent_s = 0.0  # what is lacking here says nothing about the server

    def _take_answer(self) -> bytes:
        """Return what has come; empty: nothing."""
        if self._probe is None or not self._is_asked:
            return b""
        with suppress(BlockingIOError):
            try:
                answer = self._probe.recv(_ANSWER_BYTES)
            except ConnectionError:
                answer = b""
            if not answer:
                self._close_probe()
            return answer
        return b""

    def close(self) -> None:
        """Close its own connection; the server stays."""
        self._close_probe()

    def _close_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None
        self._is_asked = False
