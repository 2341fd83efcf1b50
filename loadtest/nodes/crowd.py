"""See `loadtest.crowd`."""

from loadtest.crowd import Crowd

__all__ = ["Crowd"]
