"""What the devices of one process share in one run of the load test."""

import itertools
import secrets
from collections.abc import Iterator
from typing import Any

from loadtest.connection import parse_host, source_addresses
from loadtest.judge import Judge, Promise
from loadtest.observer import Observer
from loadtest.options import shares


class Run:
    """One run.

    Args:
        requests: locust's request event.
        host: where the server listens.
        options: locust's parsed options, ours among them.

    Attributes:
        judge: is told what the devices do.
        observer: tells the judge what the stream says.
        weights: how often a device does what.
        sources: local addresses, in turn.
        uids: names that no other process and no other run has.
        peers: devices that were online once, to send messages to.

    Raises:
        ValueError: an option or the host makes no sense.
    """

    def __init__(self, requests: Any, host: str, options: Any) -> None:
        self.requests = requests
        self.options = options
        self.weights = shares(options)
        self.address = parse_host(host)
        self.sources = source_addresses(self.address[0], options.source_addresses)
        self.judge = Judge(Promise(options.tick, options.disconnect_grace, options.slack))
        self.observer = Observer(requests, self.judge, options.redis_url, options.redis_prefix)
        name = secrets.token_hex(4)
        self.uids: Iterator[str] = (f"load-{name}-{number}" for number in itertools.count())
        self.peers: list[str] = []

    def report(self, name: str, seconds: float | None, failure: str | None = None) -> None:
        """Tell locust about one exchange with the server."""
        self.requests.fire(
            request_type="device",
            name=name,
            response_time=None if seconds is None else seconds * 1000,
            response_length=0,
            exception=None if failure is None else RuntimeError(failure),
            context={},
        )
