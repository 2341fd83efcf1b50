"""Both clients behind TLS, against the server's own transport."""

import ssl
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from presence.auth.client_certificates import CertificateIdentities
from presence.client import ClientOptions, LoginRefused, Unreachable, Unsupported, connect, connect_blocking
from presence.transports.tls import Certificate, ClientVerification
from tests.transports import certificates
from tests.transports.harness import Harness, serving
from tests.transports.issuer import Issuer

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
        with connect_blocking(host, port, uid="ann", options=ClientOptions(tls=tls)):
            pytest.fail("it was trusted")

    if kind == "blocking":
        await trio.to_thread.run_sync(live)
        return
    async with connect(host, port, uid="ann", options=ClientOptions(tls=tls)):
        pytest.fail("it was trusted")


async def test_the_trio_client_speaks_tls(server: Harness) -> None:
    async with connect(
        "localhost", server.address[1], uid="ann", options=ClientOptions(tls=certificates.client_context())
    ) as client:
        await trio.sleep(1.5 * T)
        with pytest.raises(Unsupported):
            await client.query(["bob"])
        assert client.statistics().logins == 1


async def test_the_blocking_client_speaks_tls(server: Harness) -> None:
    def live() -> int:
        context = certificates.client_context()
        with connect_blocking(
            "localhost", server.address[1], uid="ann", options=ClientOptions(tls=context)
        ) as client:
            with pytest.raises(Unsupported):
                client.query(["bob"])
            return client.statistics().logins

    assert await trio.to_thread.run_sync(live) == 1


@pytest.mark.usefixtures("system_trust")
async def test_without_a_context_whom_the_system_trusts_is_trusted(server: Harness) -> None:
    async with connect("localhost", server.address[1], uid="ann", options=ClientOptions(tls=True)) as client:
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


# Client certificates


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


@pytest.fixture
async def verifying(issuer: Issuer, tmp_path: Path) -> AsyncIterator[Harness]:
    """A server that requires certificates of clients."""
    certificate = Certificate(*certificates.write(tmp_path), ClientVerification(issuer.ca, None, True))
    identities = CertificateIdentities("cn", time.time)
    async with serving("tls", certificate=certificate, client_certificates=identities) as harness:
        yield harness


async def test_a_client_presents_its_certificate(verifying: Harness, issuer: Issuer) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    certificates.authority().configure_trust(context)
    context.load_cert_chain(issuer.issue())
    async with connect("localhost", verifying.address[1], uid="ann", options=ClientOptions(tls=context)):
        pass
    with pytest.raises(LoginRefused, match="the client certificate is another user's"):
        async with connect("localhost", verifying.address[1], uid="bob", options=ClientOptions(tls=context)):
            pytest.fail("it was logged in")


@pytest.mark.parametrize("kind", ["trio", "blocking"])
async def test_without_a_certificate_it_hears_that_one_is_required(verifying: Harness, kind: str) -> None:
    with pytest.raises(Unreachable, match="alert certificate required"):
        await try_to(kind, "localhost", verifying.address[1], certificates.client_context())
    assert verifying.changes == []


@pytest.mark.usefixtures("system_trust")
async def test_the_command_presents_a_certificate(verifying: Harness, issuer: Issuer) -> None:
    command = [sys.executable, "-m", "presence", "client", "ann", "--cert", str(issuer.issue())]
    command += ["--host", "localhost", "--port", str(verifying.address[1])]
    run = await trio.run_process(command, stdin=b"/quit\n", capture_stdout=True)
    assert b"online: " in run.stdout
    assert verifying.history() == [("login", "ann", "login"), ("end", "ann", "logout")]
