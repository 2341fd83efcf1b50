"""The clients in other languages, built once a run."""

import os
from pathlib import Path

import pytest

from tests.system.protocol.clients.node_client import built_client


@pytest.fixture(scope="session")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built client, one for all processes of a run."""
    root = tmp_path_factory.getbasetemp()
    return built_client(root.parent if "PYTEST_XDIST_WORKER" in os.environ else root)
