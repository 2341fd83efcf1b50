"""Rooms: who is in each of them, projected from the events of users into Redis.

See `docs/redis.md`.
"""
