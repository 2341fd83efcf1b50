"""What the room of the same name in the fast tier shares."""

from tests.store.conftest import a, binary, durable_server, folder, server, store

__all__ = ["a", "binary", "durable_server", "folder", "server", "store"]
