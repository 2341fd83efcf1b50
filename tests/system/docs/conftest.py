"""The fixtures of tests/docs."""

from tests.docs.conftest import server

__all__ = ["server"]
