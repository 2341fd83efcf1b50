"""What the room of the same name in the fast tier shares."""

from tests.timers.conftest import client, scripting, server

__all__ = ["client", "scripting", "server"]
