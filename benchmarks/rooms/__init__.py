"""What rooms cost, how late they are, and how fast they are right again: ``python -m benchmarks.rooms``."""
