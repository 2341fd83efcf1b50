"""Examples: `python -m presence.timers.examples.NAME` runs one, on a Redis of its own."""
