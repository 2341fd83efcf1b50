"""See `loadtest.outcome`."""

from loadtest.outcome import Verdict

__all__ = ["Verdict"]
