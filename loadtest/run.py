"""What the devices of one process share in one run of the load test."""

import contextlib
import itertools
import platform
import secrets
import time
from collections.abc import Iterator
from typing import Any

import gevent
import gevent.socket
from gevent import monkey
from locust.env import Environment

from loadtest.client_loop import ClientLoop, PlainPoll, Poller
from loadtest.connection import parse_host, resolve, source_addresses
from loadtest.judge import Judge, Promise
from loadtest.observer import Observer
from loadtest.options import scenario

WAIT_MAX_S = 0.5
WAKE_S = 0.02  # by so much something may be done late: waking costs more than a beat
LOOK_S = 0.01  # where nothing can be waited for


class Run:
    """One run.

    Args:
        environment: locust's.
        host: where the server listens.

    Attributes:
        judge: is told what the devices do.
        observer: tells the judge what the stream says.
        loop: what drives the devices.
        scenario: what devices do, and when.
        uids: names that no other process and no other run has.
        peers: devices that were online once, to send messages to.

    Raises:
        ValueError: an option or the host makes no sense.
    """

    def __init__(self, environment: Environment, host: str) -> None:
        self.requests: Any = environment.events.request
        options: Any = environment.parsed_options
        self.options = options
        self.scenario = scenario(options)
        address = resolve(parse_host(host))
        sources = source_addresses(address[0], options.source_addresses)
        self.loop = ClientLoop(address, sources=sources, poller=_poller())
        self.judge = Judge(Promise(options.tick, options.disconnect_grace, options.slack))
        self.observer = Observer(self.requests, self.judge, options.redis_url, options.redis_prefix)
        name = secrets.token_hex(4)
        self.uids: Iterator[str] = (f"load-{name}-{number}" for number in itertools.count())
        self.peers: list[str] = []
        self._stats = environment.stats
        self._is_open = True
        self._driver: gevent.Greenlet | None = None

    def start(self) -> None:
        """Follow the streams, and drive the devices.

        Raises:
            RedisError: Redis does not answer.
        """
        self.observer.start()
        self._driver = gevent.spawn(self._drive)

    def close(self) -> int:
        """Read and tell what there is, and no more: stopping thousands of devices keeps this process busy.

        Returns:
            how many offline events were still due.
        """
        if self._driver is not None:
            self._driver.kill()
        self.observer.stop()
        self._is_open = False
        return self.judge.close()

    def _drive(self) -> None:
        """Do what is due and take what comes, and let others have their turns."""
        while True:
            self.loop.turn(0)
            wait_s = min(WAIT_MAX_S, self.loop.due - time.monotonic())
            if wait_s <= 0:
                gevent.sleep(0)
            elif not hasattr(self.loop.poller, "fileno"):
                gevent.sleep(min(wait_s, LOOK_S))
            else:
                with contextlib.suppress(TimeoutError):
                    gevent.socket.wait_read(self.loop.poller.fileno(), timeout=wait_s + WAKE_S)

    def took(self, name: str, seconds: float | None = None) -> None:
        """Note what happens often: an event of locust's costs more than the beat that it would tell of."""
        if self._is_open:
            ms: Any = None if seconds is None else seconds * 1000  # locust's own are fractions, too
            self._stats.log_request("device", name, ms, 0)

    def report(self, name: str, seconds: float | None, failure: str | None = None) -> None:
        """Tell locust about one exchange with the server, unless the run is closed."""
        if not self._is_open:
            return
        self.requests.fire(
            request_type="device",
            name=name,
            response_time=None if seconds is None else seconds * 1000,
            response_length=0,
            exception=None if failure is None else RuntimeError(failure),
            context={},
        )


def _poller() -> Poller:
    """Return what to wait with; gevent hides what the standard library has."""
    if platform.system() == "Linux":
        return monkey.get_original("select", "epoll")()
    return PlainPoll(monkey.get_original("select", "poll")())
