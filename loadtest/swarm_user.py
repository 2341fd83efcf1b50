"""Hundreds of connections for each user of locust: more load with less, by one greenlet.

``locust -f loadtest/swarm_user.py --users 20 --connections 500`` are 10,000 connections. What they do is told
to the same judge. They send no messages and do not log out, and they need epoll, so Linux.
"""

import random
import time
from collections.abc import Callable, Mapping
from typing import ClassVar

import gevent
from gevent import monkey
from locust import task

from loadtest.clients import Clients
from loadtest.device import ASKED_SHARE, LATE, LATE_BEAT_S
from loadtest.hooks import LoadUser, listen
from loadtest.scenario import STORM_BACK_S, Act
from loadtest.swarm import Swarm
from loadtest.witness import Witness

FLAP_SHARE = 0.9  # of flaps are within the grace


class SwarmUser(LoadUser):
    """A swarm of ``--connections`` clients, each a device of a user of its own."""

    def on_start(self) -> None:
        """Let all log in, evenly over the time in which one more SwarmUser starts."""
        self._run = run = self.begin()
        clients = Clients(next(run.uids), run.options.connections)
        self._witness = Witness(
            run.judge, clients, run.tally.took, lambda name, failure: run.report(name, None, failure)
        )
        self._swarm = Swarm(
            run.address,
            clients,
            sources=run.sources,
            idle_timeout=run.options.idle_timeout_wish or None,
            asking=ASKED_SHARE,
            returns=True,
            watcher=self._witness,
            epoll=monkey.get_original("select", "epoll")(),
        )
        self._beats_told = 0
        self._failed_told = 0
        now = time.monotonic()
        self._swarm.bring(range(len(clients)), now, len(clients))
        self._act = self._next(now)

    def on_stop(self) -> None:
        """All vanish."""
        if self.load is not None:
            now = time.monotonic()
            self._swarm.drop(range(len(self._swarm.clients)), now)
            self._tell()
            self._swarm.close()

    @task
    def live(self) -> None:
        """Do what is due, again and again."""
        wait = self._run.waiting(self._swarm.fileno())
        try:
            while True:
                now = time.monotonic()
                if now >= self._act.at:
                    self._acts[self._act.name](self, now)
                    self._act = self._next(now)
                due = self._swarm.step(now)
                if not self._swarm.is_beating and self._witness.keepalive_s:
                    self._swarm.beat(self._witness.keepalive_s, now)
                self._tell()
                due = min(due, self._act.at)
                if due > time.monotonic():
                    wait.readable(due)
                else:
                    gevent.sleep(0)  # others have their turn
        finally:
            wait.end()

    def _next(self, now: float) -> Act:
        return self._run.scenario.next(now, time.time(), len(self._swarm.clients))

    def _tell(self) -> None:
        """Put into the report what the swarm has only counted."""
        counts, tally = self._swarm.counts, self._run.tally
        unanswered = counts.beats - counts.answers
        if unanswered > self._beats_told:
            tally.count("keepalive", unanswered - self._beats_told)
            self._beats_told = unanswered
        for late_s in counts.late:
            if late_s > LATE_BEAT_S:
                tally.took(LATE, late_s)
        del counts.late[:], counts.login_s[:], counts.answer_s[:]
        if counts.failed:
            for why, number in counts.failed.items():
                for _ in range(number):
                    self._run.report("login", None, failure=why)
            counts.failed.clear()

    def _one(self) -> list[int]:
        """Return one client that is online, if chance finds it at once."""
        number = random.randrange(len(self._swarm.clients))
        return [number] if self._swarm.clients.online[number] else []

    def _nothing(self, now: float) -> None:
        """Beat on."""

    def _fall_silent(self, now: float) -> None:
        self._hush(self._one())

    def _fall_silent_together(self, now: float) -> None:
        self._hush(self._swarm.clients.numbers(online=True))

    def _hush(self, numbers: list[int]) -> None:
        """Let them fall silent until the server ends them; then they come back."""
        self._swarm.hush(numbers)
        self._witness.silent(numbers)

    def _away(self, now: float, within_share: float = 0.5) -> None:
        """Let one lose its connection, and come back within the grace or after it."""
        options = self._run.options
        if random.random() < within_share:
            back_s = (0.0, 0.8 * options.disconnect_grace)
        else:
            after_s = options.disconnect_grace + options.tick + options.slack
            back_s = (after_s, after_s + options.disconnect_grace)
        self._swarm.drop(self._one(), now, back_s, reset=random.random() < 0.5)

    def _flap(self, now: float) -> None:
        self._away(now, FLAP_SHARE)

    def _storm(self, now: float) -> None:
        self._swarm.drop(self._swarm.clients.numbers(online=True), now, (0.0, STORM_BACK_S))

    _acts: ClassVar[Mapping[str, Callable[["SwarmUser", float], None]]] = {
        "nothing": _nothing,
        "message": _nothing,
        "silence": _fall_silent,
        "away": _away,
        "logout": _nothing,
        "flap": _flap,
        "storm": _storm,
        "all silent": _fall_silent_together,
    }


listen()
