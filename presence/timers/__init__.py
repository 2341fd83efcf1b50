"""Ways to act when a time has come; `docs/timers.md` says which to take when."""
