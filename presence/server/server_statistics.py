"""The figures of one server, assembled for the log, the admin process and other nodes.

Tests: `tests/server/test_server.py`, `tests/admin/test_prometheus.py`.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from presence import __version__
from presence.common.background_job import BackgroundJob
from presence.messaging.router import MessageRouter
from presence.server.answer_queue import AnswerQueue
from presence.server.credentials import Credentials
from presence.server.node_assembly import Node
from presence.server.process_stats import ProcessStats
from presence.server.rebalancer import Rebalancer
from presence.server.stats_socket import SAMPLE_VERSION, StatsResponder
from presence.transports.epoll_transport import EpollTransport
from presence.transports.trio_transport import StreamTransport
from presence.watching.watch_service import Watching

ServerTransport = EpollTransport | StreamTransport


class ServerStatistics:
    """Reads the counters of all services.

    Args:
        node, router, watching, answer_queue, credentials, rebalancer: those of the server.
        followups: None if the settings have no rules.
        rooms: None if the settings have no rooms.
        stats_responder: None without an admin process.
        transport: returns the transport; None before it is started.
        worker: the worker's number, from 1; 0 for a single server.

    Attributes:
        address: HOST:PORT; "" until connections are accepted.
    """

    def __init__(
        self,
        node: Node,
        router: MessageRouter,
        watching: Watching,
        answer_queue: AnswerQueue,
        credentials: Credentials,
        *,
        rebalancer: Rebalancer,
        followups: BackgroundJob | None,
        rooms: BackgroundJob | None,
        stats_responder: StatsResponder | None,
        transport: Callable[[], ServerTransport | None],
        worker: int,
    ) -> None:
        self._node = node
        self._router = router
        self._watching = watching
        self._answer_queue = answer_queue
        self._credentials = credentials
        self._rebalancer = rebalancer
        self._followups = followups
        self._rooms = rooms
        self._stats_responder = stats_responder
        self._transport = transport
        self._worker = worker
        self._started_ms = node.clock.seen_ms(node.clock.now())
        self._process = ProcessStats()
        self.address = ""

    def description(self) -> dict[str, Any]:
        """Return what other nodes see of this process beside what its node reports."""
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "address": self.address,
            "version": __version__,
            "started_ms": self._started_ms,
            "connections": self._connections(),
            "sent_away": self._rebalancer.sent_away,
            "rebalance": self._rebalancer.command,
        }

    def summary(self) -> dict[str, object]:
        """Return the dozen figures that people read in the log; those of `report` are for programs."""
        node, engine = self._node, self._node.engine.statistics()
        ticker, outbox = node.ticker.statistics(), node.outbox.statistics()
        return {
            "node": node.relay.node,
            "readiness": node.readiness().value,
            "connections": self._connections(),
            "sessions": engine.sessions,
            "logins": engine.logins,
            "refused": sum(engine.refused.values()),
            "ended": sum(engine.ended.values()),
            "keepalives": engine.keepalives,
            "waiting_for_redis": outbox.pending,
            "dropped": outbox.skipped_total,
            "latest_tick_s": round(ticker.overrun_max_s, 3),
            "stalled_s": round(ticker.stalled_s, 1),
        }

    def report(self) -> dict[str, object]:
        """Return all counters, for the log."""
        transport = self._transport()
        followups = {"followups": self._followups.report()} if self._followups is not None else {}
        rooms = {"rooms": self._rooms.report()} if self._rooms is not None else {}
        return {
            **self._node.report(),
            "transport": asdict(transport.statistics()) if transport is not None else {},
            "messages": asdict(self._router.statistics()),
            "confirmations": asdict(self._router.confirmation_counters()),
            "watching": self._watching.report(),
            "answering": asdict(self._answer_queue.questions),
            "reports": asdict(self._answer_queue.reports),
            **self._credentials.report(),
            **followups,
            **rooms,
        }

    def sample(self) -> dict[str, object]:
        """Return all figures of this moment, for the admin process."""
        node, stats = self._node, self._stats_responder
        described = {"node": node.relay.node, **node.description()}
        return {
            "v": SAMPLE_VERSION,
            "worker": self._worker,
            "at_ms": node.clock.seen_ms(node.clock.now()),
            **described,
            **self.report(),
            **node.admin_report(),
            "process": self._process.report(described["connections"]),
            "inquiries": {"asked": stats.asked if stats else 0, "dropped": stats.dropped if stats else 0},
        }

    def _connections(self) -> int:
        transport = self._transport()
        return 0 if transport is None else transport.statistics().connections
