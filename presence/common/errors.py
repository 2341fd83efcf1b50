"""Errors of calls to Redis, for modules that do not import a Redis client.

Tests: `tests/store/test_error_classes.py`.
"""


class StoreUnavailable(Exception):
    """Redis cannot be reached or cannot answer now; the call may be retried."""


class StoreInterrupted(StoreUnavailable):
    """The connection broke after the call was sent; it may have been performed, or may be performed yet."""


class StoreError(Exception):
    """Redis answered with an error that a retry may not cure; nothing was applied."""


class StoreMismatch(StoreError):
    """The data in Redis has another version or number of shards than this node is configured for."""
