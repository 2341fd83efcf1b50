"""See `loadtest.outcome`."""

from loadtest.outcome import Outcome, say, table

__all__ = ["Outcome", "say", "table"]
