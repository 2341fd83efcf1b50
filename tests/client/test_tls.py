"""Both clients behind TLS, against the server's own stream transport."""

import ssl
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import trio

from presence.client import Unreachable, Unsupported, connect, connect_blocking
from presence.transports.stream import StreamTransport
from tests.transports.harness import Harness, serving

pytestmark = pytest.mark.needs("openssl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate of `localhost`, signed by itself, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(folder / "key"), "-out", str(folder / "certificate")),
        ],
        check=True,
        capture_output=True,
    )
    both = folder / "both"
    both.write_text((folder / "key").read_text() + (folder / "certificate").read_text())
    return both


@pytest.fixture
async def port(certificate: Path) -> AsyncIterator[int]:
    """The port of a server behind TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with serving("stream", idle_timeout=1.0, listen=False) as harness:
        harness.nursery.start_soon(partial(_listen, harness, context))
        await harness.until(lambda: hasattr(harness, "address"))
        yield harness.address[1]


async def _listen(harness: Harness, context: ssl.SSLContext) -> None:
    transport = harness.transport
    assert isinstance(transport, StreamTransport)
    listeners = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1")
    harness.address = listeners[0].transport_listener.socket.getsockname()  # type: ignore[attr-defined] # TCP
    await trio.serve_listeners(transport.serve, listeners)


async def test_the_trio_client_speaks_tls(certificate: Path, port: int) -> None:
    context = ssl.create_default_context(cafile=certificate)
    async with connect("localhost", port, uid="ann", tls=context) as client:
        await trio.sleep(2.0)  # two idle time-outs
        with pytest.raises(Unsupported):
            await client.query(["bob"])
        assert client.statistics().logins == 1


async def test_the_blocking_client_speaks_tls(certificate: Path, port: int) -> None:
    def live() -> int:
        context = ssl.create_default_context(cafile=certificate)
        with connect_blocking("localhost", port, uid="ann", tls=context) as client:
            with pytest.raises(Unsupported):
                client.query(["bob"])
            return client.statistics().logins

    assert await trio.to_thread.run_sync(live) == 1


async def test_a_server_that_cannot_be_trusted_is_told_nothing(port: int) -> None:
    with pytest.raises(Unreachable, match="certificate verify failed"):
        async with connect("localhost", port, uid="ann", tls=ssl.create_default_context()):
            pytest.fail("nobody signed for this server")


async def test_nor_by_the_blocking_client(port: int) -> None:
    def live() -> None:
        with connect_blocking("localhost", port, uid="ann", tls=ssl.create_default_context()):
            pytest.fail("nobody signed for this server")

    with pytest.raises(Unreachable, match="certificate verify failed"):
        await trio.to_thread.run_sync(live)
