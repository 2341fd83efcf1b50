"""Probes are answered while others hold every connection of the port for operators."""

import json
import os
import selectors
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from urllib.parse import urlsplit

import pytest

from loadtest.usage import Stolen
from presence.admin import http
from presence.store.embedded import EmbeddedRedis
from tests.admin.processes import ADMIN, url_of
from tests.support.server_process import running_server

ANSWER_S = 0.1
HOLD_S = 2.0
PROBES = ("healthz", "readyz")
# Nothing, a part of a head, and a part of a body.
HELD = {
    "nothing": b"",
    "a part of a head": b"GET /v1/nodes HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
    "a part of a body": b"POST /v1/kick HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000\r\n\r\n{",
}


@contextmanager
def holding(url: str, sent: bytes) -> Iterator[Callable[[], int]]:
    """Hold every place, and take it again whenever it is lost; yield the number of connections so far."""
    parts = urlsplit(url)
    stop, made = threading.Event(), [0]

    def hold() -> None:
        with selectors.DefaultSelector() as lost:

            def connect() -> None:
                sock = socket.create_connection((parts.hostname, parts.port))
                sock.sendall(sent)
                lost.register(sock, selectors.EVENT_READ)
                made[0] += 1

            for _ in range(http.MAX_CONNECTIONS):
                connect()
            while not stop.is_set():
                for key, _ in lost.select(0.05):
                    lost.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr] # a socket
                    connect()
            for key in [*lost.get_map().values()]:
                key.fileobj.close()  # type: ignore[union-attr] # a socket

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield lambda: made[0]
    finally:
        stop.set()
        thread.join()


@pytest.mark.alone
@pytest.mark.parametrize("sent", HELD.values(), ids=HELD)
def test_probes_are_answered_within_100_ms_while_others_hold_every_connection(
    redis_server: EmbeddedRedis, sent: bytes
) -> None:
    with running_server("--redis", redis_server.url, *ADMIN) as server:
        url = url_of(server)
        pids = (os.getpid(), server.process.pid)
        with Stolen(pids=pids) as stolen, holding(url, sent) as made:
            while made() < http.MAX_CONNECTIONS:
                time.sleep(0.01)
            took: list[float] = []
            end = time.monotonic() + HOLD_S
            for probe in cycle(PROBES):
                begun = time.monotonic()
                with urllib.request.urlopen(f"{url}{probe}", timeout=ANSWER_S * 50) as answer:
                    assert json.load(answer)["status"] in {"ok", "ready"}
                took.append(time.monotonic() - begun)
                if time.monotonic() > end:
                    break
                time.sleep(0.02)
            count = made()
    took.sort()
    print(f"{len(took)} probes, the longest {took[-1] * 1000:.1f} ms; {count} connections held in turn")
    # The slowest ones wait for the threads of this test.
    assert took[len(took) * 9 // 10] < ANSWER_S + stolen.worst_s
