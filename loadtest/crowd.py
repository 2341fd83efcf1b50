"""Swarms in a thread of their own, who beat whatever is done to the servers."""

import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

from loadtest.swarm import Swarm

T = TypeVar("T")

WAIT_MAX_S = 0.2
ANSWER_S = 30.0  # of their thread, which never waits for long


class SwarmThread:
    """Drives swarms, and does in its thread what it is asked for.

    Args:
        swarms: to be driven.
        act: called after each wait; does what is due, and returns when to be called next.

    Attributes:
        failed: what the thread ended with, if it did.
    """

    def __init__(self, swarms: Sequence[Swarm], act: Callable[[], float] | None = None) -> None:
        self.failed: BaseException | None = None
        self._swarms = swarms
        self._act_due = act
        self._orders: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="crowd", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def ask(self, action: Callable[[], T]) -> T:
        """Do something in the thread of the clients, between two of their steps; return what it returns."""
        if self.failed is not None:
            raise self.failed
        future: Future[T] = Future()
        self._orders.put((action, future))
        os.eventfd_write(self._wake, 1)
        return future.result(ANSWER_S)

    def _run(self) -> None:
        try:
            with select.epoll() as poll:
                self._loop(poll)
        except BaseException as error:
            self.failed = error
            raise
        finally:
            for swarm in self._swarms:
                swarm.close()

    def _loop(self, poll: "select.epoll") -> None:
        poll.register(self._wake, select.EPOLLIN)
        for swarm in self._swarms:
            poll.register(swarm.fileno(), select.EPOLLIN)
        due = 0.0
        while not self._is_closing:
            ready = poll.poll(min(WAIT_MAX_S, max(0.0, due - time.monotonic())))
            if any(fd == self._wake for fd, _ in ready):
                os.eventfd_read(self._wake)
                self._obey()
            due = min(swarm.step(time.monotonic()) for swarm in self._swarms)
            if self._act_due is not None:
                due = min(due, self._act_due())

    def _obey(self) -> None:
        while True:
            try:
                action, future = self._orders.get_nowait()
            except Empty:
                return
            try:
                future.set_result(action())
            except Exception as error:
                future.set_exception(error)
