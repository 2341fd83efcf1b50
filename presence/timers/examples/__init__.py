"""Example handlers: `python -m presence.timers.examples.NAME` runs one from end to end."""
