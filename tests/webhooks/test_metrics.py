"""The metrics of a runner over HTTP: few connections at a time, and a lack of threads, end nothing."""

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from presence.webhooks import metrics
from presence.webhooks.metrics import MAX_SCRAPES, RunnerMetrics
from tests.support.no_threads import forbid_threads
from tests.support.waiting import wait_for

HOST = "127.0.0.1"


@pytest.fixture
def port() -> Iterator[int]:
    with RunnerMetrics().served(HOST, 0) as port:
        yield port


def scrape(port: int) -> str | None:
    """Return what is served, or None if the connection was closed instead."""
    with closing(http.client.HTTPConnection(HOST, port, timeout=10.0)) as connection:
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        except (http.client.HTTPException, OSError):
            return None


def test_metrics_are_served(port: int) -> None:
    assert "presence_webhook_shards 0.0" in str(scrape(port))


def test_idle_connections_take_few_threads_and_are_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics._Handler, "timeout", 0.2)
    before = threading.active_count()
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection((HOST, port))) for _ in range(5 * MAX_SCRAPES)]
        assert wait_for(lambda: threading.active_count() > before)
        assert threading.active_count() <= before + MAX_SCRAPES
        for each in idle:
            each.settimeout(10.0)
            assert each.recv(1) == b""
        assert wait_for(lambda: scrape(port))


def test_a_connection_that_sends_little_by_little_is_closed(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_SCRAPE_S", 0.3, raising=False)
    with socket.create_connection((HOST, port)) as slow:
        slow.settimeout(0.05)

        def is_closed() -> bool:
            try:
                slow.sendall(b"x")
                return slow.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        assert wait_for(is_closed)


def test_a_lack_of_threads_closes_a_connection_and_prints_no_traceback(
    port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as lacking:
        forbid_threads(lacking)
        for _ in range(2 * MAX_SCRAPES):  # each gives its place back
            assert scrape(port) is None
    assert scrape(port)
    assert capfd.readouterr().err == ""
