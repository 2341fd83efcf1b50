"""Reads the streams of a server for a load test, and hands the judge's findings to locust.

One greenlet a process: it follows all shards, and passes over the devices of other processes.
"""

import logging
import time
from typing import Any

import gevent

from loadtest.judge import Finding, Judge
from presence.store.address import redacted
from presence.store.client import RedisError, open_client
from presence.store.failures import CONNECTION_LOST
from presence.subscriber.events import Gap, Item
from presence.subscriber.follower import EVENTS_PER_READ, Follower
from presence.subscriber.link import Link

RETRY_S = 0.5
CROWD = 20  # events that came at one read; then the next is worth waiting for,
PAUSE_S = 0.1  # for a read costs a process as much as dozens of events, and there may be many processes
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
        self._link = Link(redis_url)
        self._follower = Follower(self._link, prefix)
        self._greenlet: gevent.Greenlet | None = None
        self._details = 0

    def start(self) -> None:
        """Follow the streams from where they end now.

        Raises:
            RedisError: Redis does not answer.
        """
        with self._link.calling() as client:
            self._follower.add_shards(client)
        self._greenlet = gevent.spawn(self._follow)

    def stop(self) -> None:
        """Read what is there, and no more; a second call does nothing."""
        if self._greenlet is None:
            return
        self._greenlet.kill()
        self._greenlet = None
        # The greenlet's connection may have an answer under way that nobody reads any more.
        self._link.close()
        try:
            with self._link.calling() as client:
                self._judge_all(self._follower.read(client), time.monotonic())
        except RedisError as error:
            self._report_unreadable(error)

    def _follow(self) -> None:
        while True:
            try:
                self._read()
            except CONNECTION_LOST as error:  # what comes too late by it is judged when it comes
                logger.warning("lost Redis at %s, trying again: %s", redacted(self._redis_url), error)
                gevent.sleep(RETRY_S)
            except RedisError as error:
                self._report_unreadable(error)
                gevent.sleep(RETRY_S)

    def _read(self) -> None:
        asked = time.monotonic()
        self._follower.fetch()
        items = []
        while (item := self._follower.take()) is not None:
            items.append(item)
        self._judge_all(items, time.monotonic())
        if len(items) >= EVENTS_PER_READ:  # more is waiting, and what seems overdue may be among it
            return
        for finding in self._judge.overdue(asked):
            self._report(finding)
        if len(items) >= CROWD:
            gevent.sleep(PAUSE_S)

    def _judge_all(self, items: list[Item], arrived: float) -> None:
        for item in items:
            if isinstance(item, Gap):
                self._report(Finding("events", None, "events are missing", f"{item.reason} after {item.id}"))
                continue
            for finding in self._judge.event(item.id, item.fields, arrived):
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
