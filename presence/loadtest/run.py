"""What the devices of one process share in one run: a loop, a judge, and what follows the streams.

Tests: `tests/system/loadtest/test_locust.py`.
"""

import contextlib
import logging
import math
import platform
import secrets
import time
from collections.abc import Callable
from typing import Any

import gevent
import gevent.socket
from gevent import monkey
from locust.env import Environment

from presence.common.redis_url import redacted
from presence.loadtest.client_loop import ClientLoop, PlainPoll, Poller
from presence.loadtest.device import Run
from presence.loadtest.device_tokens import DeviceTokens
from presence.loadtest.judge import DeviceFinding, DeviceJudge, EventDeadlines
from presence.loadtest.options import Act, check_options, scenario
from presence.loadtest.report import Examples
from presence.loadtest.server_address import parse_host, resolve, source_addresses, tls_context
from presence.store.error_classes import CONNECTION_LOST
from presence.store.redis_client import RedisError
from presence.subscriber import Gap, Offline, Online, subscribe_sync
from presence.subscriber.events import Item
from presence.subscriber.follower import EVENTS_PER_READ, Follower
from presence.subscriber.redis_connections import RedisConnections

MAX_WAIT_S = 0.5
WAKE_DELAY_S = 0.02  # by so much something may be done late: waking costs more than a keepalive
POLL_INTERVAL_S = 0.01  # where nothing can be waited for
RETRY_S = 0.5
MANY_EVENTS = 20  # events that came at one read; then the next is worth waiting for,
PAUSE_S = 0.1  # for a read costs a process as much as dozens of events, and there may be many processes
CONSUMED = "consumed, since the decision"
READ_REST_TIMEOUT_S = 5.0  # at the end: a judge so far behind has seen too little
DETAILS_LOGGED = 20  # broken promises logged in full; locust's report counts all of them

logger = logging.getLogger("presence.loadtest")


class DeviceRun(Run):
    """A run under locust; its uids are unique among processes and runs.

    Attributes:
        is_open: whether it still reports; closing takes a while, and judges the last events.

    Raises:
        ValueError: an option or the host makes no sense.
    """

    def __init__(self, environment: Environment, host: str, tokens: DeviceTokens, examples: Examples) -> None:
        self._requests: Any = environment.events.request
        self._stats = environment.stats
        options: Any = environment.parsed_options
        check_options(options)
        self.options = options
        self._scenario = scenario(options)
        self._tokens = tokens
        self.idle_timeout_wish = options.idle_timeout_wish or None
        target = parse_host(host)
        self.tls = tls_context(options.tls_ca, insecure=options.tls_insecure) if target.is_tls else None
        self.server_name = target.host
        address = resolve(target.host, target.port)
        sources = source_addresses(address[0], options.source_addresses)
        deadlines = (options.tick, options.disconnect_grace, options.slack)
        self._name = f"load-{secrets.token_hex(4)}"
        super().__init__(
            ClientLoop(address, sources=sources, poller=_poller()),
            DeviceJudge(EventDeadlines(*deadlines)),
            f"{target.host}:{target.port}",
            self._name,
        )
        self._connections = None if options.no_events else RedisConnections(options.redis_url)
        if self._connections is None:
            self.judge.close()  # it expects no events
        else:
            self._follower = Follower(self._connections, options.redis_prefix)
        self._greenlets: list[gevent.Greenlet] = []
        self._examples = examples
        self._details_logged = 0
        self.is_open, self.is_closing = True, False
        self._is_redis_lost = False

    def start(self) -> None:
        """Follow the streams of all shards from their present end, and run the devices; raises RedisError."""
        if self._connections is not None:
            with self._connections.borrow() as client:
                self._follower.add_shards(client)
            self._start_part(self._follow)
            for number in range(self.options.consumers):
                self._start_part(self._consume, str(number))
        self._start_part(self._drive)

    def close(self) -> int:
        """Read and report the last events: stopping thousands of devices keeps this process busy.

        Returns:
            how many offline events were not due yet.
        """
        self.is_closing = True
        try:
            gevent.killall(self._greenlets)
            if self._connections is not None:
                self._read_rest(self._connections)
            self.is_open = False
        finally:  # an interrupt may hit it here, and the process closes the run once more when it quits
            self.is_closing = False
        return self.judge.close()

    def release(self) -> None:
        """Give up what a closed run still has, once its devices are stopped."""
        self.loop.__exit__()
        if self._connections is not None:
            self._connections.close()

    def get_token(self, uid: str, on_token: Callable[[str, str], object]) -> None:
        self._tokens.get(uid, on_token)

    def next_act(self) -> Act:
        return self._scenario.next(time.monotonic(), time.time())

    def _start_part(self, part: Callable[..., None], *arguments: str) -> None:
        """Run a part of this run; one that ends by an error fails the run, because nothing replaces it."""
        greenlet = gevent.spawn(part, *arguments)
        greenlet.link_exception(lambda ended: self._report_dead_part(part.__name__, ended.exception))
        self._greenlets.append(greenlet)

    def _report_dead_part(self, name: str, error: BaseException) -> None:
        part = {"_drive": "the devices", "_follow": "the judge of events", "_consume": "a consumer"}[name]
        detail = f"{type(error).__name__}: {error}"
        self._report_finding(DeviceFinding("events", None, f"{part} died in the load test", detail))

    def _read_rest(self, connections: RedisConnections) -> None:
        """Judge what is in the streams by now, and what is missing there."""
        connections.close()  # it may have an answer in flight that is not read any more
        give_up_at = time.monotonic() + READ_REST_TIMEOUT_S
        try:
            with connections.borrow() as client:
                while True:
                    asked = time.monotonic()
                    items = self._follower.read(client)
                    self._judge_all(items, time.monotonic())
                    if not items:
                        break
                    if asked > give_up_at:
                        self._report_finding(DeviceFinding("events", None, "the judge is behind the streams"))
                        break
                for finding in [] if items else self.judge.overdue(asked):
                    self._report_finding(finding)
                keys = self._follower.shards.keys
                for key in map(keys.events, range(keys.shards if self.options.consumers else 0)):
                    client.at(key).xgroup_destroy(key, self._name)
        except RedisError as error:
            self._report_unreadable(error)

    def _drive(self) -> None:
        """Run the loop, with turns for other greenlets."""
        while True:
            self.loop.run_once(0)
            wait_s = min(MAX_WAIT_S, self.loop.next_due_at - time.monotonic())
            if wait_s <= 0:
                gevent.sleep(0)
            elif not hasattr(self.loop.poller, "fileno"):
                gevent.sleep(min(wait_s, POLL_INTERVAL_S))
            else:
                with contextlib.suppress(TimeoutError):
                    gevent.socket.wait_read(self.loop.poller.fileno(), timeout=wait_s + WAKE_DELAY_S)

    # What the streams say

    def _follow(self) -> None:
        while True:
            try:
                self._read()
            except CONNECTION_LOST as error:  # what comes too late by it is judged when it comes
                self._log_redis_state(error)
                gevent.sleep(RETRY_S)
            except RedisError as error:
                self._report_unreadable(error)
                gevent.sleep(RETRY_S)

    def _log_redis_state(self, error: Exception | None = None) -> None:
        """Log the beginning and the end of an outage, and nothing in between."""
        if self._is_redis_lost == bool(error):
            return
        self._is_redis_lost = bool(error)
        url = redacted(self.options.redis_url)
        if error:
            logger.warning("lost Redis at %s, trying again: %s", url, error)
        else:
            logger.info("Redis at %s is reachable again", url)

    def _read(self) -> None:
        asked = time.monotonic()
        self._follower.fetch()
        self._log_redis_state()
        items = []
        while (item := self._follower.next()) is not None:
            items.append(item)
        self._judge_all(items, time.monotonic())
        if len(items) >= EVENTS_PER_READ:  # more is waiting, and what seems overdue may be among it
            return
        for finding in self.judge.overdue(asked):
            self._report_finding(finding)
        if len(items) >= MANY_EVENTS:
            gevent.sleep(PAUSE_S)

    def _judge_all(self, items: list[Item], arrived: float) -> None:
        for item in items:
            if isinstance(item, Gap):
                self._report_finding(
                    DeviceFinding("events", None, "events are missing", f"{item.reason} after {item.id}")
                )
                continue
            for finding in self.judge.judge_event(item.id, item.fields, arrived):
                self._report_finding(finding)

    def _consume(self, consumer: str) -> None:
        """Consume the events of all users, as one of a group; record how old they are."""
        url, prefix = self.options.redis_url, self.options.redis_prefix
        try:
            with subscribe_sync(url, group=self._name, consumer=consumer, prefix=prefix) as events:
                for event in events:
                    if isinstance(event, Online | Offline):
                        age_s = time.monotonic() - self.judge.clock.bounds(event.at_ms)[1]
                        if math.isfinite(age_s):  # with the first login the server's clock is known
                            self.record_time(CONSUMED, max(0.0, age_s), "event")
        except RedisError as error:
            self._report_unreadable(error)

    def _report_unreadable(self, error: RedisError) -> None:
        self._report_finding(DeviceFinding("events", None, "the stream cannot be read", str(error)))

    # Reports to locust

    def report_promise(self, finding: DeviceFinding) -> None:
        """Report what a device found, unless the run is closed."""
        if self.is_open:
            self._report_finding(finding, "device")

    def _report_finding(self, finding: DeviceFinding, kind: str = "event") -> None:
        if finding.broken:
            self._details_logged += 1
            if self._details_logged <= DETAILS_LOGGED:
                logger.error("%s: %s (%s)", finding.name, finding.broken, finding.detail)
            self._examples.add(f"{finding.name}: {finding.broken}", [finding.detail])
        self._fire(kind, finding.name, finding.seconds, finding.broken)

    def record_time(self, name: str, seconds: float | None = None, kind: str = "device") -> None:
        """Record a frequent event: firing locust's event costs more than the keepalive it reports."""
        if self.is_open:
            ms: Any = None if seconds is None else seconds * 1000  # locust's own are fractions, too
            self._stats.log_request(kind, name, ms, 0)

    def report_exchange(self, name: str, seconds: float | None, failure: str | None = None) -> None:
        """Report one exchange with the server to locust, unless the run is closed."""
        if self.is_open:
            self._fire("device", name, seconds, failure)

    def _fire(self, kind: str, name: str, seconds: float | None, error: str | None) -> None:
        self._requests.fire(
            request_type=kind,
            name=name,
            response_time=None if seconds is None else seconds * 1000,
            response_length=0,
            exception=error,
            context={},
        )


def _poller() -> Poller:
    """Return a poller; gevent hides those of the standard library."""
    if platform.system() == "Linux":
        return monkey.get_original("select", "epoll")()
    return PlainPoll(monkey.get_original("select", "poll")())
