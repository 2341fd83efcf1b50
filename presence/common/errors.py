"""How calls of Redis fail, for everybody who does not know Redis."""


class StoreUnavailable(Exception):
    """Redis cannot be reached or cannot answer now: the same call may be made again later."""


class StoreInterrupted(StoreUnavailable):
    """The connection broke after the call was sent: it may have been performed, or may be yet."""


class StoreError(Exception):
    """Redis answered with an error that waiting may not cure; nothing was applied."""


class StoreMismatch(StoreError):
    """The data in Redis has another version or another number of shards than this node is set to."""
