"""Servers for the page on Redis: the embedded one, and the one in PATH."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from presence.store.embedded import find_binary
from tests.store.servers import Server


@pytest.fixture(
    scope="module", params=["embedded", pytest.param("redis-server", marks=pytest.mark.needs("redis-server"))]
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    binary = find_binary() if request.param == "embedded" else shutil.which(request.param)
    assert binary
    # A child that writes the append-only file anew may outlive its server for a moment, and the folder.
    with tempfile.TemporaryDirectory(prefix="ps-", ignore_cleanup_errors=True) as folder:
        server = Server(binary, Path(folder))
        yield server
        server.close()
