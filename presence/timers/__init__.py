"""Ways to act when a time has come; `presence/docs/timers.md` says which to take when."""
