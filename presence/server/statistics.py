"""The figures of one server, assembled for the log, the admin process and other nodes."""

import os
import socket
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any

from presence import __version__
from presence.followups.scheduler_task import SchedulerTask
from presence.messaging.router import MessageRouter
from presence.server.credentials import Credentials
from presence.server.node import Node
from presence.server.process_stats import ProcessStats
from presence.server.question_responder import QuestionResponder
from presence.server.stats_socket import SAMPLE_VERSION, StatsResponder
from presence.transports.epoll import EpollTransport
from presence.transports.stream import StreamTransport
from presence.watching.service import Watching

Transport = EpollTransport | StreamTransport | None
"""The transport of a server; None before it is started."""


@dataclass(eq=False, repr=False)
class ServerStatistics:
    """Reads the counters of all services. Each method takes the transport, which is started last."""

    node: Node
    router: MessageRouter
    watching: Watching
    responder: QuestionResponder
    credentials: Credentials
    followups: SchedulerTask | None
    stats_responder: StatsResponder | None
    _: KW_ONLY
    worker: int  # the worker's number, from 1; 0 for a single server
    started_ms: int  # Unix milliseconds
    address: str = ""  # HOST:PORT; "" until connections are accepted

    def __post_init__(self) -> None:
        self._process = ProcessStats()

    def description(self, transport: Transport) -> dict[str, Any]:
        """Return what other nodes see of this process beside what its node reports."""
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "address": self.address,
            "version": __version__,
            "started_ms": self.started_ms,
            "connections": _connections(transport),
        }

    def summary(self, transport: Transport) -> dict[str, object]:
        """Return the dozen figures that people read in the log; those of `report` are for programs."""
        node, engine = self.node, self.node.engine.statistics()
        ticker, outbox = node.ticker.statistics(), node.outbox.statistics()
        return {
            "node": node.relay.node,
            "readiness": node.readiness().value,
            "connections": _connections(transport),
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

    def report(self, transport: Transport) -> dict[str, object]:
        """Return all counters, for the log."""
        followups = {"followups": self.followups.report()} if self.followups is not None else {}
        return {
            **self.node.report(),
            "transport": asdict(transport.statistics()) if transport else {},
            "messages": asdict(self.router.statistics()),
            "watching": self.watching.report(),
            "answering": asdict(self.responder.questions),
            "reports": asdict(self.responder.reports),
            **self.credentials.report(),
            **followups,
        }

    def sample(self, transport: Transport) -> dict[str, object]:
        """Return all figures of this moment, for the admin process."""
        node, stats = self.node, self.stats_responder
        described = {"node": node.relay.node, **node.description()}
        return {
            "v": SAMPLE_VERSION,
            "worker": self.worker,
            "at_ms": node.clock.seen_ms(node.clock.now()),
            **described,
            **self.report(transport),
            **node.admin_report(),
            "process": self._process.report(described["connections"]),
            "inquiries": {"asked": stats.asked if stats else 0, "dropped": stats.dropped if stats else 0},
        }


def _connections(transport: Transport) -> int:
    return transport.statistics().connections if transport else 0
