"""Metrics of a runner, for Prometheus; `docs/webhooks.md` lists them."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import BoundedSemaphore, Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

from presence.common import threads
from presence.subscriber.events import Entry, Item
from presence.webhooks.http_client import Failure

_REQUEST_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_DELAY_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)


MAX_SCRAPES: Final = 8  # at the same time, each with a thread and a descriptor; others are refused
SCRAPE_TIMEOUT_S: Final = 5.0  # of a connection that sends or reads nothing
MAX_SCRAPE_S: Final = (
    10.0  # of any connection: one that sends or reads little by little must not keep a place
)
STOP_POLL_S: Final = 0.1
ACCEPT_PAUSE_S: Final = 0.1  # after a failed accept, as without a descriptor: the connection is still waiting


class RunnerMetrics:
    """All metrics of one runner, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "presence_webhook_requests_total",
            "Requests by result: accepted, refused, or receiver_away",
            ["result"],
            registry=self.registry,
        )
        self.events = Counter(
            "presence_webhook_events_total",
            "Events by what became of them: accepted, skipped, or dead_letter",
            ["result"],
            registry=self.registry,
        )
        self.request_s = Histogram(
            "presence_webhook_request_seconds",
            "Duration of requests",
            buckets=_REQUEST_S,
            registry=self.registry,
        )
        self.delay_s = Histogram(
            "presence_webhook_delay_seconds",
            "From the server's decision to the acceptance of the event",
            buckets=_DELAY_S,
            registry=self.registry,
        )
        self.shards = Gauge(
            "presence_webhook_shards", "Shards that this runner sends", registry=self.registry
        )

    def note_request(self, failure: Failure | None, duration_s: float) -> None:
        result = "accepted" if failure is None else "receiver_away" if failure.is_away else "refused"
        self.requests.labels(result).inc()
        self.request_s.observe(duration_s)

    def note_accepted(self, items: Sequence[Item], wall_s: float) -> None:
        """Count the events of an accepted request; `wall_s`: Unix seconds now."""
        self.events.labels("accepted").inc(len(items))
        for item in items:
            if isinstance(item, Entry) and (at_ms := item.fields.get("at_ms", "")).isdigit():
                self.delay_s.observe(max(0.0, wall_s - int(at_ms) / 1000))

    @contextmanager
    def served(self, host: str, port: int) -> Iterator[int]:
        """Serve the metrics over HTTP for the duration of a ``with`` block; yield the port.

        Raises:
            OSError: the address cannot be used, or there is no thread.
        """
        with make_server(host, port, make_wsgi_app(self.registry), _server_class(host), _Handler) as server:
            thread = Thread(target=server.serve_forever, args=(STOP_POLL_S,), daemon=True)
            threads.start(thread)
            try:
                yield server.server_port
            finally:
                server.shutdown()
                thread.join()


class _Handler(WSGIRequestHandler):
    timeout = SCRAPE_TIMEOUT_S

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class _ScrapeServer(WSGIServer):
    """A thread for each of a few requests."""

    request_queue_size = 128  # connections not accepted yet

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._places = BoundedSemaphore(MAX_SCRAPES)
        self._began_at: dict[socket.socket, float] = {}  # of connections with a place: monotonic seconds

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(ACCEPT_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._began_at[request] = time.monotonic()
        try:
            threads.start(Thread(target=self._answer, args=(request, client_address), daemon=True))
        except BaseException:
            self._free_place(request)
            raise

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            with suppress(Exception):  # its connection is closed; a scraper comes again
                self.finish_request(request, client_address)
        finally:
            self.shutdown_request(request)
            self._free_place(request)

    def _free_place(self, request: Any) -> None:
        del self._began_at[request]
        self._places.release()

    def service_actions(self) -> None:
        """Close what takes too long; `serve_forever` calls this every `STOP_POLL_S`."""
        now = time.monotonic()
        for request, began_at in self._began_at.copy().items():
            if now - began_at > MAX_SCRAPE_S:
                with suppress(OSError):  # it has just ended
                    request.shutdown(socket.SHUT_RDWR)  # its thread reads the end, or fails to write

    def handle_error(self, *_: object) -> None:
        """Print nothing: the request is closed."""


class _ScrapeServer6(_ScrapeServer):
    address_family = socket.AF_INET6


def _server_class(host: str) -> type[_ScrapeServer]:
    return _ScrapeServer6 if ":" in host else _ScrapeServer
