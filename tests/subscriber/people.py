"""Users who come and go, written like a server while the cluster changes; and a view of them."""

import itertools
import json
import random
import threading
import time
from typing import Any

from presence.store.error_classes import passes
from presence.store.keys import Keys
from presence.store.redis_client import RedisError
from presence.store.shard_clients import ShardClients
from presence.subscriber import BlockingSubscription, Event, Gap, Offline, Online, Snapshot
from tests.subscriber.streams import event_fields
from tests.support.waiting import wait_for

SHARDS = 16
USERS = 400
PAUSE_S = 0.002
RETRY_S = 0.02


class People:
    """A thread that makes transitions, one after the other; each is repeated until Redis has answered."""

    def __init__(self, url: str) -> None:
        self._access = ShardClients(url)
        self._keys = Keys(shards=SHARDS)
        meta = self._keys.meta
        self._access.at(meta).hset(meta, mapping={"version": 2, "shards": SHARDS})
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.online: set[str] = set()
        self.transitions = self.refused = 0

    def __enter__(self) -> "People":
        self._thread.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.stop()
        self._access.close()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def finish(self) -> set[str]:
        """Stop, and bring a last user online in each shard; return these, whom a complete view has."""
        self.stop()
        last: dict[int, str] = {}
        for uid in (f"last-{n}" for n in itertools.count()):
            last.setdefault(self._keys.shard(uid), uid)
            if len(last) == SHARDS:
                break
        for uid in last.values():
            self._complete(uid)
        return {*last.values()}

    def wait_for(self, transitions: int) -> None:
        """Wait until there were that many more."""
        enough = self.transitions + transitions
        wait_for(lambda: self.transitions >= enough)

    def _run(self) -> None:
        chance = random.Random(5)
        while not self._end.is_set():
            self._complete(f"user-{chance.randrange(USERS)}")
            self.transitions += 1
            time.sleep(PAUSE_S)

    def _complete(self, uid: str) -> None:
        while not self._turn(uid):
            time.sleep(RETRY_S)

    def _turn(self, uid: str) -> bool:
        """Write that a user came online or went offline; return whether Redis has accepted it."""
        comes, keys = uid not in self.online, self._keys
        session = {"session": "s", "node": "n", "login_ms": 1}
        record = json.dumps({"id": "1-0", "since_ms": 1, "sessions": {"": session}})

        def fill(pipe: Any, shard: int) -> None:
            pipe.xadd(keys.events(shard), event_fields(uid, "online" if comes else "offline"))
            if comes:
                pipe.hset(keys.online(shard), uid, record)
            else:
                pipe.hdel(keys.online(shard), uid)

        try:
            self._access.ask(keys, [keys.shard(uid)], fill, is_atomic=True)
        except RedisError as error:
            if not passes(error):
                raise
            self.refused += 1
            self._access.invalidate(answer=error)
            return False
        self.online ^= {uid}
        return True


class View:
    """Who is online, according to the events that were read."""

    def __init__(self) -> None:
        self.online: set[str] = set()
        self.snapshots = self.gaps = 0

    def follow(self, events: BlockingSubscription[Snapshot | Event]) -> None:
        """Handle the next item, if there is one."""
        match events.poll():
            case Snapshot(online=online):
                self.online = set(online)
                self.snapshots += 1
            case Online(uid=uid):
                self.online.add(uid)
            case Offline(uid=uid):
                self.online.discard(uid)
            case Gap():
                self.gaps += 1
            case _:
                pass

    def follow_until(self, last: set[str], events: BlockingSubscription[Snapshot | Event]) -> None:
        """Handle items until these users are online, however long shards of a lost server are left out."""

        def is_there() -> bool:
            self.follow(events)
            return last <= self.online

        wait_for(is_there)
