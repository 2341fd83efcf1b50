"""What the devices of one process share in one run of the load test."""

import itertools
import secrets
from collections.abc import Iterator
from typing import Any

import gevent
from locust.env import Environment

from loadtest.connection import parse_host, resolve, source_addresses
from loadtest.judge import Judge, Promise
from loadtest.observer import Observer
from loadtest.options import scenario
from loadtest.tally import Tally
from loadtest.waits import Waits

TELL_S = 0.5  # locust shows and sends its figures each second or more


class Run:
    """One run.

    Args:
        environment: locust's.
        host: where the server listens.

    Attributes:
        judge: is told what the devices do.
        observer: tells the judge what the stream says.
        tally: notes what devices do often.
        waiting: how devices wait for a descriptor.
        scenario: what devices do, and when.
        sources: local addresses, in turn.
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
        self.address = resolve(parse_host(host))
        self.sources = source_addresses(self.address[0], options.source_addresses)
        self.judge = Judge(Promise(options.tick, options.disconnect_grace, options.slack))
        self.observer = Observer(self.requests, self.judge, options.redis_url, options.redis_prefix)
        name = secrets.token_hex(4)
        self.uids: Iterator[str] = (f"load-{name}-{number}" for number in itertools.count())
        self.peers: list[str] = []
        self.tally = Tally(environment.stats, "device")
        self.waiting = Waits().waiting
        self._is_open = True
        self._teller: gevent.Greenlet | None = None

    def start(self) -> None:
        """Follow the streams, and tell locust what is noted.

        Raises:
            RedisError: Redis does not answer.
        """
        self.observer.start()
        self._teller = gevent.spawn(self._tell)

    def close(self) -> int:
        """Read and tell what there is, and no more: stopping thousands of devices keeps this process busy.

        Returns:
            how many offline events were still due.
        """
        if self._teller is not None:
            self._teller.kill()
        self.observer.stop()
        self.tally.close()
        self._is_open = False
        return self.judge.close()

    def _tell(self) -> None:
        while True:
            gevent.sleep(TELL_S)
            self.tally.flush()

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
