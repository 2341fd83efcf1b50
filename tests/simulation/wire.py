"""A process's connections to Redis, and everything that may go wrong on them.

Each round trip takes a while there and a while back. It may be lost before Redis or after, may be carried out
long after its caller has given up, or twice. What is lost is a failure after redis-py's own time-out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import redis
from greenlet import getcurrent

from presence.store.redis_client import CALL_TIMEOUT_S
from tests.simulation.fake.client import Answers, Perform
from tests.simulation.machine import Agenda
from tests.simulation.observed import ObservedRedis

SLOW_S: Final = 0.1  # a call that took longer was in trouble; on a good day none takes 10 ms
ONE_WAY_S: Final = (0.0002, 0.004)


@dataclass
class ConnectionFaults:
    """What happens to calls on a connection: probabilities, and seconds of delay each way."""

    lose_request: float = 0.0
    lose_reply: float = 0.0
    late_share: float = 0.0
    late_s: tuple[float, float] = (2.0, 60.0)
    twice_share: float = 0.0
    delay_s: float = 0.0


NO_FAULTS: Final = ConnectionFaults()


class RedisConnection:
    """One connection of one process.

    Attributes:
        failed_at: true time at which its last call failed or was slow for a cause of its own, not because
            Redis was unreachable for all.
    """

    def __init__(self, agenda: Agenda, server: ObservedRedis, random: Random) -> None:
        self._agenda = agenda
        self._server = server
        self._random = random
        self.faults = NO_FAULTS  # what it goes through
        self.cuts = 0  # how many faults keep it from Redis now
        self.refused = False  # whether a cut is reported immediately, not by a time-out
        self.disturbed_until = -1e9  # true time at which a cut or a weather last ended
        self.failed_at = -1e9
        self.sent_at: float | None = None  # true time of the call that is under way; None without one

    def deliver(self, perform: Perform) -> Answers:
        """Make a round trip; called in a greenlet, which waits here.

        Raises:
            redis.TimeoutError, redis.ConnectionError: it failed; Redis may have performed it, or may yet do
            so.
        """
        caller = getcurrent().parent
        assert caller is not None
        started = self.sent_at = self._agenda.now
        result = caller.switch(lambda answer: self._send(perform, answer))
        self.sent_at = None
        failed = isinstance(result, Exception)
        if (failed or self._agenda.now - started > SLOW_S) and self._has_own_cause(started):
            self.failed_at = self._agenda.now
        if failed:
            raise result
        answers: Answers = result
        return answers

    def _send(self, perform: Perform, answer: Callable[[Any], None]) -> None:
        agenda, faults, draw = self._agenda, self.faults, self._random.random
        gives_up_at = agenda.now + CALL_TIMEOUT_S
        there, back = self._one_way_s(), self._one_way_s()
        epoch, sent_at = self._server.epoch, agenda.now
        state = {"open": True}

        def finish(result: Any) -> None:
            if state["open"]:
                state["open"] = False
                answer(result)

        def time_out() -> None:
            finish(redis.TimeoutError("Timeout reading from socket"))

        def fail() -> None:
            finish(redis.ConnectionError("Connection reset by peer"))

        def arrive(first: bool = True) -> None:
            self._server.in_flight_s = agenda.now - sent_at
            if self._server.epoch != epoch:
                fail()
            elif not first:
                perform()
            elif self.is_cut():
                return  # on the way; the caller's time-out tells
            else:
                answers = perform()
                agenda.after(back, lambda: returned(answers))

        def returned(answers: Answers) -> None:
            if self._server.epoch != epoch:
                fail()
            elif not self.is_cut() and draw() >= faults.lose_reply:
                finish(answers)

        if self.is_cut() and (self.refused or self._server.refuses_connections):
            agenda.after(0.001, fail)
            return
        agenda.at(gives_up_at, time_out)
        if draw() < faults.lose_request or self.is_cut():
            return
        if draw() < faults.late_share:
            agenda.after(self._random.uniform(*faults.late_s), lambda: arrive(first=False))
            return
        if draw() < faults.twice_share:
            agenda.after(there + self._random.uniform(0.0, faults.late_s[1]), lambda: arrive(first=False))
        agenda.after(there, arrive)

    def _has_own_cause(self, started: float) -> bool:
        """Whether a call that began at a true moment was disturbed by more than an outage of Redis."""
        is_rough = self.cuts > 0 or self.faults is not NO_FAULTS or self.disturbed_until >= started
        return is_rough or not self._server.was_unreachable(started)

    def is_cut(self) -> bool:
        """Whether nothing passes."""
        return self.cuts > 0 or self._server.outages > 0

    def _one_way_s(self) -> float:
        usual = self._random.uniform(*ONE_WAY_S)
        return usual + (self._random.uniform(0.0, self.faults.delay_s) if self.faults.delay_s else 0.0)

    def is_failing(self, since: float) -> bool:
        """Whether a call has failed since a true moment, or the call in flight is about to."""
        if self.failed_at >= since:
            return True
        if self.sent_at is None or self._agenda.now - self.sent_at <= SLOW_S:
            return False
        return self._has_own_cause(self.sent_at)
