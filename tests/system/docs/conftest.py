"""What the room of the same name in the fast tier shares."""

from tests.docs.conftest import server

__all__ = ["server"]
