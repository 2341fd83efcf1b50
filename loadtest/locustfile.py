"""Devices under locust that know what they did, and so whether the server's events are true.

``locust -f loadtest/locustfile.py``; README.md beside this file says more. Locust patches the process with
gevent when it is imported: never import this module beside trio or in the tests' process.
"""

import logging
import random
import sys
import time
from typing import Any, ClassVar

import gevent
from locust import User, events, task
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import MasterRunner, WorkerRunner

from loadtest.connection import ConnectionEnded, raise_file_limit
from loadtest.device import Device, Refused
from loadtest.observer import check_redis
from loadtest.options import add_options, shares
from loadtest.run import Run
from presence.store.client import RedisError, redacted
from protocol import Code, ProtocolError

logger = logging.getLogger("presence.loadtest")


class DeviceUser(User):
    """One device of a user of its own: one greenlet, one TCP connection.

    It beats at the interval that the server dictates. Now and then it does something else: sends a message,
    falls silent, loses its connection, logs out; and comes back, sometimes in time and sometimes not.
    """

    host = "127.0.0.1:7400"
    load: ClassVar[Run | None] = None

    def on_start(self) -> None:
        """Take a name; without a run there is nothing to do."""
        if self.load is None:
            self.environment.events.request.fire(
                request_type="event",
                name="events",
                response_time=None,
                response_length=0,
                exception=RuntimeError("the run could not begin; the log says why"),
                context={},
            )
            raise StopUser
        self._run = self.load
        self._device = Device(self._run)

    def on_stop(self) -> None:
        """Vanish, as a device does."""
        if self.load is not None and self._device.is_online:
            self._device.close()

    @task
    def live(self) -> None:
        """Beat for a while, then do one thing."""
        try:
            self._come_online()
            every_s = self._run.options.action_every
            self._device.live(time.monotonic() + random.expovariate(1 / every_s))
            weights = self._run.weights
            action = random.choices(list(weights), list(weights.values()))[0]
            getattr(self, f"_{action}")()
        except (ConnectionEnded, ProtocolError, Refused) as error:
            self._device.dropped(error)
            gevent.sleep(self._device.back_off_s(error.retry_after if isinstance(error, Refused) else 0))

    def _come_online(self) -> None:
        while not self._device.is_online:
            self._log_in()

    def _log_in(self) -> None:
        at_least = 0.0
        try:
            self._device.log_in()
        except Refused as error:
            is_limit = error.code == Code.BUSY  # a promise, too: over its limits the server refuses
            self._run.report(f"login refused, {error.reason}", None, None if is_limit else error.reason)
            at_least = error.retry_after
        except (OSError, ConnectionEnded, ProtocolError) as error:
            self._run.report("login", None, failure=str(error))
        else:
            return
        gevent.sleep(self._device.back_off_s(at_least))

    def _nothing(self) -> None:
        """Beat on."""

    def _message(self) -> None:
        self._device.message()

    def _silence(self) -> None:
        """Fall silent: briefly, until just about the time-out, or for long."""
        session, options = self._device.session, self._run.options
        timeout_s, last = session.idle_timeout, session.last_sent().done
        kind = random.choices(["brief", "taken over", "edge", "long"], [2, 1, 1, 4])[0]
        out_s = {
            "brief": random.uniform(0.4, 0.9) * timeout_s,
            "taken over": random.uniform(0.4, 0.9) * timeout_s,
            "edge": timeout_s + random.uniform(-0.2, 1.2) * options.tick,
            "long": timeout_s + options.tick + options.slack + random.uniform(0, timeout_s / 2),
        }[kind]
        try:
            self._device.fall_silent(last + out_s)
        except Refused as goodbye:
            if goodbye.code != Code.IDLE_TIMEOUT:
                raise
            self._device.dropped(goodbye)
            gevent.sleep(max(0.0, last + out_s - time.monotonic()))
        if kind == "taken over" and self._device.is_online:
            self._log_in()  # elsewhere, as far as the server can see: the first connection is still open

    def _away(self) -> None:
        """Lose the connection, and come back within the grace or after it."""
        session, options = self._device.session, self._run.options
        self._device.close(reset=random.random() < 0.5)
        closed = time.monotonic()
        idle_s = session.last_sent().begun + session.idle_timeout - closed
        grace_s = max(0.0, min(options.disconnect_grace, idle_s))
        if random.random() < 0.5:
            out_s = random.uniform(0, 0.8) * grace_s
        else:
            out_s = grace_s + options.tick + options.slack + random.uniform(0, session.idle_timeout / 2)
        gevent.sleep(out_s)

    def _logout(self) -> None:
        """Log out, and come back at once or later."""
        self._device.log_out()
        if random.random() < 0.5:
            gevent.sleep(random.uniform(0, self._device.session.idle_timeout))


def _add_options(parser: Any, **_: Any) -> None:
    add_options(parser)


def _prepare(environment: Environment, **_: Any) -> None:
    """Refuse to start with options or a Redis that cannot work."""
    options = environment.parsed_options
    assert options is not None
    raise_file_limit()
    # A worker is told its options by the master, later. A master has no devices, and may run where Redis
    # cannot be reached, unless it has forked its workers.
    is_alone = not isinstance(environment.runner, MasterRunner | WorkerRunner)
    if not is_alone and not (options.master and options.processes):
        return
    try:
        shares(options)
        check_redis(options.redis_url)
    except ValueError as error:
        sys.exit(str(error))
    except RedisError as error:
        sys.exit(f"cannot reach Redis at {redacted(options.redis_url)}: {error}")


def _begin(environment: Environment, **_: Any) -> None:
    """Follow the streams before the first device logs in."""
    DeviceUser.load = None
    if isinstance(environment.runner, MasterRunner):
        return
    try:
        load = Run(environment, environment.host or DeviceUser.host)
        load.start()
    except (RedisError, ValueError) as error:
        logger.error("cannot begin: %s", error)  # noqa: TRY400 - the message says it all
    else:
        DeviceUser.load = load


def _stop_judging(**_: Any) -> None:
    """From now on devices vanish because they are told to."""
    if DeviceUser.load is not None:
        logger.info("%d offline events are not due yet", DeviceUser.load.judge.close())


def _end(**_: Any) -> None:
    if DeviceUser.load is not None:
        DeviceUser.load.stop()


def _set_exit_code(environment: Environment, **_: Any) -> None:
    """A broken promise is the exit status, whatever else it was to be."""
    if environment.stats.total.num_failures:
        environment.process_exit_code = 1


_events: Any = events  # locust's hooks are untyped
_events.init_command_line_parser.add_listener(_add_options)
_events.init.add_listener(_prepare)
_events.test_start.add_listener(_begin)
_events.test_stopping.add_listener(_stop_judging)
_events.test_stop.add_listener(_end)
_events.quitting.add_listener(_set_exit_code)
