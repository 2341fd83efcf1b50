"""The fixtures of tests/subscriber."""

from tests.subscriber.conftest import client, short_reads, streams, url

__all__ = ["client", "short_reads", "streams", "url"]
