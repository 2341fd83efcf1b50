"""What the room of the same name in the fast tier shares."""

from tests.store.conftest import binary, durable_server, folder, server, store

__all__ = ["binary", "durable_server", "folder", "server", "store"]
