"""The clients in other languages, each built once for all its tests; a server with TLS and tokens."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from presence.common.clock import Clock
from presence.config.settings import Settings
from presence.core.authenticator import Authenticator
from presence.server import credentials
from tests.support.built_once import built_once
from tests.support.credentials import SECRET, write_keys
from tests.system.protocol import java_package, node_package
from tests.transports.harness import Harness, serving


@pytest.fixture(scope="session")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built client in TypeScript."""
    return built_once(tmp_path_factory, "node", node_package.built_client)


@pytest.fixture(scope="session")
def java_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built client in Java."""
    return built_once(tmp_path_factory, "java", java_package.built_client)


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Harness]:
    """The server's own transport, with TLS and tokens."""
    settings = Settings(token_keys=str(write_keys(tmp_path / "keys.json", {"a": SECRET})))

    def made(clock: Clock) -> Authenticator:
        found = credentials.load_authenticator(settings, clock)
        assert found is not None
        return found

    async with serving("tls", idle_timeout=5.0, authenticator=made) as harness:
        yield harness
