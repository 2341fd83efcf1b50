"""Handlers that run as they stand: `python -m presence.timers.examples.NAME` shows one from end to end."""
