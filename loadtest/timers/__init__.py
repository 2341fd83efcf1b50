"""Timers measured: how late, how dear, and what is lost when their processes die."""
