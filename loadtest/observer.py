"""Reads the streams of a server for a load test, and hands the judge's findings to locust.

One greenlet a process: it follows all shards, and passes over the devices of other processes.
"""

import logging
import time
from typing import Any

import gevent

from loadtest.judge import Finding, Judge
from presence.reader import EVENTS_PER_READ, EventReader
from presence.store.client import CONNECTION_LOST, RedisError, open_client, redacted

BLOCK_MS = 250  # one read; also how often it is looked at what has not come
CALL_TIMEOUT_S = 5.0  # well above BLOCK_MS, or a quiet stream would look like a lost connection
RETRY_S = 0.5
DETAILS_LOGGED = 20  # broken promises told in full; locust's report counts all of them

logger = logging.getLogger("presence.loadtest")


class BrokenPromise(Exception):
    """The server's events and the truth of a device differ."""


class Observer:
    """The subscription of one load generator's process.

    Args:
        requests: locust's request event.
        judge: who knows what the devices did.
        redis_url, prefix: where the server writes.
    """

    def __init__(self, requests: Any, judge: Judge, redis_url: str, prefix: str) -> None:
        self._requests = requests
        self._judge = judge
        self._redis_url = redis_url
        self._prefix = prefix
        self._client = open_client(redis_url, call_timeout_s=CALL_TIMEOUT_S)
        self._reader: EventReader | None = None
        self._greenlet: gevent.Greenlet | None = None
        self._details = 0

    def start(self) -> None:
        """Follow the streams from where they end now.

        Raises:
            RedisError: Redis does not answer.
        """
        self._reader = EventReader(self._client, self._prefix)
        self._greenlet = gevent.spawn(self._follow)

    def stop(self) -> None:
        """Read what is there, and no more; a second call does nothing."""
        if self._greenlet is None:
            return
        self._greenlet.kill()
        self._greenlet = None
        # The greenlet's connection may have an answer under way that nobody reads any more.
        self._client.connection_pool.disconnect()
        try:
            self._read(block_ms=1)
        except RedisError as error:
            self._report_unreadable(error)

    def _follow(self) -> None:
        while True:
            try:
                self._read(BLOCK_MS)
            except CONNECTION_LOST as error:  # what comes too late by it is judged when it comes
                logger.warning("lost Redis at %s, trying again: %s", redacted(self._redis_url), error)
                gevent.sleep(RETRY_S)
            except RedisError as error:
                self._report_unreadable(error)
                gevent.sleep(RETRY_S)

    def _read(self, block_ms: int) -> None:
        assert self._reader is not None
        asked = time.monotonic()
        events = self._reader.read(block_ms)
        arrived = time.monotonic()
        for event in events:
            for finding in self._judge.event(event.id, event.fields, arrived):
                self._report(finding)
        if len(events) < EVENTS_PER_READ:  # else more is waiting, and what seems overdue may be among it
            for finding in self._judge.overdue(asked):
                self._report(finding)

    def _report_unreadable(self, error: RedisError) -> None:
        self._report(Finding("events", None, "the stream cannot be read", str(error)))

    def _report(self, finding: Finding) -> None:
        exception = None
        if finding.broken:
            exception = BrokenPromise(finding.broken)
            self._details += 1
            if self._details <= DETAILS_LOGGED:
                logger.error("%s: %s (%s)", finding.name, finding.broken, finding.detail)
        self._requests.fire(
            request_type="event",
            name=finding.name,
            response_time=None if finding.seconds is None else finding.seconds * 1000,
            response_length=0,
            exception=exception,
            context={},
        )


def check_redis(url: str) -> None:
    """Look whether Redis answers.

    Raises:
        RedisError: it does not.
        ValueError: the URL's scheme or form is not known.
    """
    with open_client(url) as client:
        client.ping()
