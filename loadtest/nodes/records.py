"""See `loadtest.records`."""

from loadtest.records import Records

__all__ = ["Records"]
