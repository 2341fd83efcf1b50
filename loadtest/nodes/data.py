"""A Redis that can be stopped, killed and started again at the same address, and what stands in it."""

from loadtest.records import Records
from loadtest.servers import RedisServer


class Data(RedisServer, Records):
    """A `RedisServer`, and what stands in it."""

    def __init__(self, *, keep: bool = False) -> None:
        Records.__init__(self, lambda _key: self.client)
        RedisServer.__init__(self, keep=keep)
