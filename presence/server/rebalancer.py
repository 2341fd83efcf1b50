"""Sends clients away at an operator's order, so that they spread over the nodes again.

`presence rebalance` orders each loaded node to send so many clients away within some seconds, and orders
again when it has seen where they went. So a command that is killed stops within one order. One command at a
time: while the orders of one are fresh, those of others are refused, and after it was stopped, its own.

A client that is sent away keeps its session, as of a server that stops: it has until its idle time-out to
log in anywhere, without an event. Clients are drawn at random among those who logged in before the command
began, so that none is sent away twice, and who have been heard recently, so that each has time to return.
"""

import math
import random
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from presence import protocol
from presence.common.clock import Clock
from presence.common.runtime import Runtime
from presence.common.text import printable
from presence.core.engine import Engine
from presence.core.registry import Session
from presence.protocol import Code
from presence.store.control_messages import RebalanceOrder

PAUSE_S: Final = 0.25  # between two turns
MAX_SENT_PER_TURN: Final = 64  # a goodbye costs some 30 µs: 2 ms
MAX_EXAMINED_PER_TURN: Final = 1024  # sessions drawn, of which few may be old enough: 1 ms
MAX_RETURN_DELAY_S: Final = 1.0  # until a client may log in elsewhere; its own random pause follows
MIN_RETURN_S: Final = 3.0  # left of the idle time-out, and half of it at least: keepalives come every 0.4
COMMAND_KEPT_S: Final = 15.0  # after its last order, a command still keeps others out

_log = structlog.get_logger(__name__)


class Rebalancer:
    """Carries out the orders of one `presence rebalance` at a time.

    Args:
        engine: has the sessions.
        clock: monotonic time.
        runtime: where its task runs.

    Attributes:
        sent_away: clients, since the start.
    """

    def __init__(self, engine: Engine, clock: Clock, runtime: Runtime) -> None:
        self.sent_away = 0
        self._engine = engine
        self._clock = clock
        self._runtime = runtime
        self._ordered = runtime.wake_event()
        self._command = ""  # the command whose orders are obeyed; "": none
        self._kept_until = -math.inf
        self._stopped = ""  # the last command that was stopped
        self._sent_before = 0  # `sent_away` when the command began
        self._sessions: Sequence[Session] = ()  # all when the last order came
        self._order = NO_ORDER
        self._ordered_at = 0.0
        self._newest_login_at = 0.0  # of those that it concerns
        self._sent = 0  # of this order

    @property
    def command(self) -> str | None:
        """The command that is under way; None: none is."""
        return self._command or None

    def obey(self, orders: Iterable[RebalanceOrder]) -> None:
        """Begin with the last of these orders in place of an earlier one; never waits."""
        for order in orders:
            now = self._clock.now()
            if not order.clients:
                if self._command and order.command in {"", self._command}:
                    self._stopped = self._command
                    self._finish()
            elif order.command != self._stopped and self._command in {"", order.command}:
                if not self._command:
                    self._command, self._sent_before = order.command, self.sent_away
                    _log.info("rebalance started", by=printable(order.command))
                self._kept_until = now + order.over_s + COMMAND_KEPT_S
                self._sessions = list(self._engine.registry)
                self._order, self._ordered_at, self._sent = order, now, 0
                self._newest_login_at = now - order.min_age_s
                self._ordered.set()

    async def run(self) -> None:
        """Send clients away as ordered, until cancelled."""
        while True:
            left_s = self._kept_until - self._clock.now()
            if self._sent < self._order.clients:
                self._send_some()
                await self._runtime.sleep(PAUSE_S)
            elif self._command and left_s <= 0:
                self._finish()
            else:
                await self._ordered.wait(left_s if self._command else math.inf)

    def _send_some(self) -> None:
        """Send away those of the order whose time has come, or give the order up when it is over."""
        now, order = self._clock.now(), self._order
        share = min(1.0, (now - self._ordered_at + PAUSE_S) / order.over_s)
        due = min(MAX_SENT_PER_TURN, math.ceil(order.clients * share) - self._sent)
        for _ in range(min(MAX_EXAMINED_PER_TURN, 16 * len(self._sessions))):
            if due <= 0:
                break
            session = random.choice(self._sessions)  # noqa: S311 - no secret
            if self._may_be_sent(session, now):
                self._engine.terminator.disconnect_all([session], _goodbye)
                self.sent_away += 1
                self._sent += 1
                due -= 1
        if now - self._ordered_at >= order.over_s:
            self._order, self._sessions = NO_ORDER, ()

    def _may_be_sent(self, session: Session, now: float) -> bool:
        left_s = session.last_seen + session.idle_timeout - now
        return (
            session.transport is not None
            and session.login_at <= self._newest_login_at
            and left_s >= max(MIN_RETURN_S, session.idle_timeout / 2)
        )

    def _finish(self) -> None:
        sent = self.sent_away - self._sent_before
        _log.info("rebalance finished", by=printable(self._command), sent_away=sent)
        self._command, self._order, self._sessions = "", NO_ORDER, ()


def _goodbye() -> bytes:
    retry_after = round(random.uniform(0.1, MAX_RETURN_DELAY_S), 2)  # noqa: S311 - spreads load, no secret
    return protocol.encode(protocol.goodbye(Code.SERVER_DRAIN, retry_after=retry_after))


NO_ORDER: Final = RebalanceOrder("", 0, 1.0, 0.0)
