"""Reads the events of all shards while a run goes on, in a thread of its own."""

import os
import threading
import time

from loadtest.events import Event, WallClock, event_of
from presence.store.client import RedisError
from presence.store.failures import passes
from presence.subscriber.events import Gap, Item
from presence.subscriber.follower import Follower
from presence.subscriber.link import Link

RETRY_S = 0.2
NICE = 5
GAP = "gap in the stream"
END_TIMEOUT_S = 10.0  # above the time that a read may wait


class Reader:
    """Follows the streams from where they end now, and keeps what it reads.

    Attributes:
        events: all so far, in the order of the stream.
        clock: the wall clock beside the monotonic one, sampled at every read.
        broken: why events may be missing; empty if none are.
        offline: how many of the events are offline events.
    """

    def __init__(self, redis_url: str, prefix: str = "presence") -> None:
        self.events: list[Event] = []
        self.broken: list[str] = []
        self.offline = 0
        self.clock = WallClock()
        self._link = Link(redis_url)
        self._follower = Follower(self._link, prefix)
        with self._link.calling() as client:
            self._follower.add_shards(client)
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read no more."""
        self._finished.set()
        self._thread.join(END_TIMEOUT_S)
        self._follower.close()

    def _run(self) -> None:
        # The cores are the server's first: other subscribers have machines of their own.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while not self._finished.is_set():
            try:
                self._follower.fetch()
                self._take_all()
            except (RedisError, ValueError) as error:
                if passes(error):
                    time.sleep(RETRY_S)
                    continue
                self.broken.append(f"the stream cannot be read: {error}")
                return

    def _take_all(self) -> None:
        self.clock.sample()
        while (item := self._follower.take()) is not None:
            self._take(item)

    def _take(self, item: Item) -> None:
        if isinstance(item, Gap):
            self.broken.append(f"{GAP}: {item.reason} after {item.id}")
            return
        event = event_of(item, self.clock)
        self.events.append(event)
        self.offline += event.type == "offline"
