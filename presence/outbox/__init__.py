"""The way from the engine to Redis: a bounded queue, numbered batches, resync and reconciliation.

Defines the interfaces of its store; does not import a Redis client.
"""
