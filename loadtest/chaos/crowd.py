"""Clients in a thread of their own, who come, go, move and fall silent, and what each truly did."""

import os
import random
import select
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from loadtest.chaos.acts import Acts, Ended, Gone
from loadtest.chaos.group import Address, Group

T = TypeVar("T")

WAIT_MAX_S = 0.2
ANSWER_S = 30.0  # of their thread, which never waits for long
EACH_S = 25.0  # mean time between two deeds of a client
NEAR_S = 0.04  # before the time-out: so late beat those who beat late


class Crowd:
    """All clients.

    Args:
        addresses: of nodes, with and without proxies.
        count: how many clients there are.
        near: how many of them beat shortly before their time-out; always without a proxy.
        idle_timeout, tick, grace: the servers', seconds.
        tell: see `Ended`; called in their thread.
        gone: see `Acts`.

    Attributes:
        users: what they did, by uid.
        failed: what their thread ended with, if it did.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        count: int,
        near: int,
        *,
        idle_timeout: float,
        tick: float,
        grace: float,
        tell: Ended,
        gone: Gone,
    ) -> None:
        self._acts = Acts(idle_timeout + tick, grace, tell, gone)
        direct = [each for each in addresses if not each.is_proxied]
        self._groups = [
            Group("user", count - near, addresses, 0.4 * idle_timeout, self._acts),
            Group("near", near, direct, idle_timeout - NEAR_S, self._acts),
        ]
        self.users = {user.uid: user for group in self._groups for user in group.users}
        self._pick = [group for group in self._groups for _ in group.users]
        self._act_s = EACH_S / count
        self._orders: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._is_closing = False
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="crowd", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def bring_all(self, per_second: float) -> None:
        """Let all log in, evenly at that rate."""

        def bring() -> None:
            for group in self._groups:
                group.swarm.bring(range(len(group.users)), time.monotonic(), per_second)

        self._ask(bring)

    def act(self, *, on: bool) -> None:
        """Let them begin, or cease, to do things by themselves."""

        def begin() -> None:
            if on and not self._acts.is_acting:
                self._acts.after(self._act_s, self._act)
            self._acts.is_acting = on

        self._ask(begin)

    def live(self) -> dict[str, str]:
        """Return the sessions of those who are there and mean to stay, by uid."""
        return self._ask(lambda: {uid: name for group in self._groups for uid, name in group.live().items()})

    @property
    def deeds(self) -> dict[str, int]:
        """What they did, how often."""
        return dict(self._acts.deeds)

    @property
    def beats(self) -> int:
        """How many were sent."""
        return sum(group.swarm.counts.beats for group in self._groups)

    @property
    def logins(self) -> int:
        """How many were granted."""
        return sum(group.swarm.counts.logins for group in self._groups)

    # In their thread

    def _act(self) -> None:
        if self._acts.is_acting:
            random.choice(self._pick).act()
            self._acts.after(self._act_s, self._act)

    def _ask(self, action: Callable[[], T]) -> T:
        if self.failed is not None:
            raise self.failed
        future: Future[T] = Future()
        self._orders.put((action, future))
        os.eventfd_write(self._wake, 1)
        return future.result(ANSWER_S)

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:
            self.failed = error
            raise
        finally:
            for group in self._groups:
                group.swarm.close()
            self._acts.close()

    def _loop(self) -> None:
        poll = select.epoll()
        poll.register(self._wake, select.EPOLLIN)
        for group in self._groups:
            poll.register(group.swarm.fileno(), select.EPOLLIN)
        due = 0.0
        while not self._is_closing:
            ready = poll.poll(min(WAIT_MAX_S, max(0.0, due - time.monotonic())))
            if any(fd == self._wake for fd, _ in ready):
                os.eventfd_read(self._wake)
                self._obey()
            self._acts.run_due(time.monotonic())
            due = min(self._acts.due, *(group.swarm.step(time.monotonic()) for group in self._groups))
        poll.close()

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
