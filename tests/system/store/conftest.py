"""The fixtures of tests/store."""

from tests.store.conftest import a, binary, durable_server, folder, server, store

__all__ = ["a", "binary", "durable_server", "folder", "server", "store"]
