"""The client in TypeScript as a stranger: behind TLS, with a token; against the server's own transport."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from presence.auth import gate
from presence.auth.verdicts import Gate
from presence.clock import Clock
from presence.settings import Settings
from tests.credentials import SECRET, token, write_keys
from tests.system.protocol.clients.node_client import Device
from tests.transports import certificates
from tests.transports.harness import Harness, serving

pytestmark = [pytest.mark.needs("node"), pytest.mark.needs("npm")]
HOST = f"tls://{certificates.HOST}"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Harness]:
    """A server with TLS that checks tokens."""
    settings = Settings(token_keys=write_keys(tmp_path / "keys.json", {"a": SECRET}))

    def made(clock: Clock) -> Gate:
        found = gate.from_settings(settings, clock, time.time)
        assert found is not None
        return found

    async with serving("tls", idle_timeout=5.0, gate=made) as harness:
        yield harness


@pytest.fixture
def trust(tmp_path: Path) -> dict[str, str]:
    """The environment of a device that trusts the tests' authority."""
    file = tmp_path / "authority.pem"
    certificates.authority().cert_pem.write_to_path(str(file))
    return {"NODE_EXTRA_CA_CERTS": str(file)}


async def test_it_logs_in_with_a_token_over_tls(
    node_client: Path, server: Harness, trust: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{token('ann')}\n")

    def live() -> tuple[str, int]:
        device = Device(node_client, (HOST, server.address[1]), "ann", "phone", f"@{file}", **trust)
        try:
            device.told("connected")
            return device.ask("query", ["bob"])["error"], device.close()
        finally:
            device.kill()

    assert await trio.to_thread.run_sync(live) == ("Unsupported", 0)  # this server serves no queries
    assert server.story() == [("login", "ann", "login"), ("end", "ann", "logout")]


async def test_somebody_elses_token_is_refused_and_another_asked_for(
    node_client: Path, server: Harness, trust: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(token("ann"))

    def live() -> list[str]:
        device = Device(node_client, (HOST, server.address[1]), "eve", "phone", f"@{file}", **trust)
        try:
            return [device.told("disconnected")["reason"] for _ in range(2)]
        finally:
            device.kill()

    assert await trio.to_thread.run_sync(live) == ["auth_failed", "no_token"]  # the file has no other
    assert server.changes == []


async def test_a_server_that_cannot_be_trusted_is_told_nothing(node_client: Path, server: Harness) -> None:
    def live() -> str:
        device = Device(node_client, (HOST, server.address[1]), "ann")
        try:
            lost = device.told("disconnected")
            assert lost["reason"] == "unreachable"
            return str(lost["message"])
        finally:
            device.kill()

    assert "certificate" in await trio.to_thread.run_sync(live)
