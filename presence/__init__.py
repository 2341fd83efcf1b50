"""A TCP presence server: who is online and who went silent, reported once and in order."""

__version__ = "1.0.0rc1"
