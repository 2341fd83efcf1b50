"""Devices under locust that know what they did, and so whether the server's events are true.

``locust -f loadtest/locustfile.py``; README.md beside this file says more. Locust patches the process with
gevent when it is imported: never import this module beside trio or in the tests' process.
"""

import random
import time
from collections.abc import Callable
from typing import ClassVar

import gevent
from locust import task

from loadtest.connection import ConnectionEnded
from loadtest.device import Device, Refused
from loadtest.hooks import LoadUser, listen
from loadtest.scenario import STORM_BACK_S
from protocol import Code, ProtocolError

SPAWN_S = 1.0  # between two portions of users that locust starts
FLAP_SHARE = 0.9  # of flaps are within the grace: a tunnel, another cell; the rest are longer


class DeviceUser(LoadUser):
    """One device of a user of its own: one greenlet, one TCP connection.

    It beats at the interval that the server dictates. What else it does, and when, the scenario says.
    """

    def on_start(self) -> None:
        """Take a name, and a moment: locust starts the users of one second all at once."""
        self._run = self.begin()
        self._device = Device(self._run)
        gevent.sleep(random.uniform(0, SPAWN_S))

    def on_stop(self) -> None:
        """Vanish, as a device does."""
        if self.load is not None and self._device.is_online:
            self._device.close()

    @task
    def live(self) -> None:
        """Beat for a while, then do one thing."""
        try:
            self._come_online()
            act = self._run.scenario.next(time.monotonic(), time.time())
            self._device.live(act.at)
            self._acts[act.name](self)
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

    def _fall_silent(self) -> None:
        """Fall silent: briefly, until just about the time-out, or for long."""
        self._silence(random.choices(["brief", "taken over", "edge", "long"], [2, 1, 1, 4])[0])

    def _fall_silent_together(self) -> None:
        """Fall silent until offline, as all others do now."""
        self._silence("long")

    def _silence(self, kind: str) -> None:
        session, options = self._device.session, self._run.options
        timeout_s, last = session.idle_timeout, session.last_sent().done
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

    def _away(self, within_share: float = 0.5) -> None:
        """Lose the connection, and come back within the grace or after it."""
        session, options = self._device.session, self._run.options
        self._device.close(reset=random.random() < 0.5)
        closed = time.monotonic()
        idle_s = session.last_sent().begun + session.idle_timeout - closed
        grace_s = max(0.0, min(options.disconnect_grace, idle_s))
        if random.random() < within_share:
            out_s = random.uniform(0, 0.8) * grace_s
        else:
            out_s = grace_s + options.tick + options.slack + random.uniform(0, session.idle_timeout / 2)
        gevent.sleep(out_s)

    def _flap(self) -> None:
        """Lose the connection, mostly for a moment."""
        self._away(FLAP_SHARE)

    def _storm(self) -> None:
        """Lose the connection when all do, and come back as a client library does."""
        self._device.close(reset=True)
        gevent.sleep(random.uniform(0, STORM_BACK_S))

    def _logout(self) -> None:
        """Log out, and come back at once or later."""
        self._device.log_out()
        if random.random() < 0.5:
            gevent.sleep(random.uniform(0, self._device.session.idle_timeout))

    _acts: ClassVar[dict[str, Callable[["DeviceUser"], None]]] = {
        "nothing": _nothing,
        "message": _message,
        "silence": _fall_silent,
        "away": _away,
        "logout": _logout,
        "flap": _flap,
        "storm": _storm,
        "all silent": _fall_silent_together,
    }


listen()
