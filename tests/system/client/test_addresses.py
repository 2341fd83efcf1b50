"""A host name with several addresses, of which the first does not answer."""

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from loadtest.servers import PresenceServer
from presence.client import connect, connect_blocking
from tests.support.backends import on_both_backends

NAME, SILENT, LISTENING = "presence.example", "127.0.0.77", "127.0.0.1"
TOO_LONG_S = 3.0  # an address is given a quarter of a second before the next one is tried beside it


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server whose host name has two addresses; the first answers no SYN."""
    real = socket.getaddrinfo

    def lookup(host: Any, port: Any, *arguments: Any, **named: Any) -> Any:
        hosts = [SILENT, LISTENING] if host in {NAME, NAME.encode()} else [host]
        return [found for each in hosts for found in real(each, port, *arguments, **named)]

    with PresenceServer() as server, contextlib.ExitStack() as stack:
        port = server.address[1]
        listener = stack.enter_context(socket.create_server((SILENT, port), backlog=0))
        assert listener.getsockname()[1] == port
        for _ in range(2):  # from then on the queue is full, and SYNs are dropped
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((SILENT, port))
        monkeypatch.setattr(socket, "getaddrinfo", lookup)
        yield port


@on_both_backends()
async def test_a_client_reaches_the_address_that_answers(named: int) -> None:
    started = time.monotonic()
    async with connect(NAME, named, uid="ann") as client:
        assert await client.query(["ann"])
    assert time.monotonic() - started < TOO_LONG_S


def test_a_script_reaches_it_too(named: int) -> None:
    started = time.monotonic()
    with connect_blocking(NAME, named, uid="ann") as client:
        assert client.query(["ann"])
    assert time.monotonic() - started < TOO_LONG_S
