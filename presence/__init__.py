"""A TCP presence server: who is online, who went silent, told once and in order."""

__version__ = "0.1.0"
