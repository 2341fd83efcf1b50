"""The client in TypeScript, built once for all its tests."""

from pathlib import Path

import pytest

from tests.system.protocol.node_package import built_client


@pytest.fixture(scope="session")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built client."""
    return built_client(tmp_path_factory.mktemp("node"))
