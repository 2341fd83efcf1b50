"""Both clients behind TLS, against the server's own transport."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from presence.client import Unreachable, Unsupported, connect, connect_blocking
from tests.transports import certificates
from tests.transports.harness import Harness, serving

T = 5.0


@pytest.fixture
async def server() -> AsyncIterator[Harness]:
    async with serving("tls", idle_timeout=T) as harness:
        yield harness


@pytest.fixture
def system_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that trusts the tests' authority."""
    file = tmp_path / "authority.pem"
    certificates.authority().cert_pem.write_to_path(str(file))
    monkeypatch.setenv("SSL_CERT_FILE", str(file))


async def try_to(kind: str, host: str, port: int, tls: bool | ssl.SSLContext) -> None:
    """Connect to a server that must not be trusted."""

    def live() -> None:
        with connect_blocking(host, port, uid="ann", tls=tls):
            pytest.fail("it was trusted")

    if kind == "blocking":
        await trio.to_thread.run_sync(live)
        return
    async with connect(host, port, uid="ann", tls=tls):
        pytest.fail("it was trusted")


async def test_the_trio_client_speaks_tls(server: Harness) -> None:
    async with connect(
        "localhost", server.address[1], uid="ann", tls=certificates.client_context()
    ) as client:
        await trio.sleep(1.5 * T)
        with pytest.raises(Unsupported):
            await client.query(["bob"])
        assert client.statistics().logins == 1


async def test_the_blocking_client_speaks_tls(server: Harness) -> None:
    def live() -> int:
        context = certificates.client_context()
        with connect_blocking("localhost", server.address[1], uid="ann", tls=context) as client:
            with pytest.raises(Unsupported):
                client.query(["bob"])
            return client.statistics().logins

    assert await trio.to_thread.run_sync(live) == 1


@pytest.mark.usefixtures("system_trust")
async def test_without_a_context_whom_the_system_trusts_is_trusted(server: Harness) -> None:
    async with connect("localhost", server.address[1], uid="ann", tls=True) as client:
        assert client.statistics().logins == 1


@pytest.mark.parametrize("kind", ["trio", "blocking"])
async def test_a_server_that_cannot_be_trusted_is_told_nothing(server: Harness, kind: str) -> None:
    with pytest.raises(Unreachable, match="certificate verify failed"):
        await try_to(kind, "localhost", server.address[1], True)
    assert server.changes == []


@pytest.mark.parametrize("kind", ["trio", "blocking"])
async def test_nor_one_of_another_name(server: Harness, kind: str) -> None:
    with pytest.raises(Unreachable, match="certificate verify failed"):
        await try_to(kind, "127.0.0.1", server.address[1], certificates.client_context())
    assert server.changes == []
