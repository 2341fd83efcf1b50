"""Watching and querying users: watches, cached states, and pushes of changes to clients."""
