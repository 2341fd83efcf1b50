"""The client in TypeScript behind TLS, against the server's own stream transport."""

import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme

from presence.transports.stream import StreamTransport
from tests.protocol.clients.node_client import Device
from tests.transports.harness import Harness, serving

pytestmark = [pytest.mark.needs("node"), pytest.mark.needs("npm")]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def address(authority: trustme.CA) -> AsyncIterator[tuple[str, int]]:
    """A server behind TLS, as the device takes it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    async with serving("stream", idle_timeout=5.0, listen=False) as harness:
        harness.nursery.start_soon(partial(_listen, harness, context))
        await harness.until(lambda: hasattr(harness, "address"))
        yield "tls://localhost", harness.address[1]


async def _listen(harness: Harness, context: ssl.SSLContext) -> None:
    transport = harness.transport
    assert isinstance(transport, StreamTransport)
    listeners = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1")
    harness.address = listeners[0].transport_listener.socket.getsockname()  # type: ignore[attr-defined] # TCP
    await trio.serve_listeners(transport.serve, listeners)


async def test_it_speaks_tls(
    node_client: Path, address: tuple[str, int], authority: trustme.CA, tmp_path: Path
) -> None:
    trusted = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(trusted))

    def live() -> tuple[str, int]:
        device = Device(node_client, address, "ann", NODE_EXTRA_CA_CERTS=str(trusted))
        try:
            device.told("connected")
            return device.ask("query", ["bob"])["error"], device.close()
        finally:
            device.kill()

    assert await trio.to_thread.run_sync(live) == ("Unsupported", 0)  # this server serves no queries


async def test_a_server_that_cannot_be_trusted_is_told_nothing(
    node_client: Path, address: tuple[str, int]
) -> None:
    def live() -> str:
        device = Device(node_client, address, "ann")
        try:
            lost = device.told("disconnected")
            assert lost["reason"] == "unreachable"
            return str(lost["message"])
        finally:
            device.kill()

    assert "certificate" in await trio.to_thread.run_sync(live)
