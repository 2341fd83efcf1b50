"""What the room of the same name in the fast tier shares."""

from tests.subscriber.conftest import client, short_reads, streams, url

__all__ = ["client", "short_reads", "streams", "url"]
