"""Timers, in the process and in Redis; `docs/timers.md` says when to use which."""
