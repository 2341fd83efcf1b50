"""What loads the server beside the crowd: visitors, subscribers, and a backend that changes rosters."""

import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import BrokenExecutor, Future
from dataclasses import replace
from typing import Any

from benchmarks.load_generator import PRESENCE, WEBSOCKET
from benchmarks.visits import VisitGenerator, VisitReport
from loadtest.processes import WorkerProcess
from loadtest.websocket_client import BINARY, BINARY_REQUEST, message
from presence import protocol
from presence.auth.token_signer import Signer
from presence.common.errors import StoreError, StoreUnavailable
from presence.loadtest.server_address import raise_file_limit
from presence.rosters import PresenceRosters
from presence.store.keys import Keys
from presence.store.redis_client import RedisError, open_client
from presence.subscriber import subscribe_sync

VISITOR = "visitor-"
TOKEN_TTL_S = 7 * 86_400.0
SUBSCRIBED_S = 3.0  # how long a subscriber stays
PAUSE_S = 12.0  # until the next comes
RETRY_S = 0.5
ROSTER_INTERVAL_S = 0.1  # between two changes of rosters
ROSTER_USERS = 5  # put into a roster, added or removed together
READY_TIMEOUT_S = 120.0  # to sign a token for each visitor

_generators: list[VisitGenerator] = []  # of the process of the visitors


class Visitors:
    """A process whose clients log in with a token, log out half a second later, and return.

    Args:
        key: signs their tokens; an entry of a key file.
        users: how many clients there are.
        over_websocket: whether they speak WebSocket; their uids are others then.
    """

    def __init__(
        self, address: tuple[str, int], key: Mapping[str, Any], users: int, *, over_websocket: bool = False
    ) -> None:
        self._process = WorkerProcess(_prepare, (address, key, users, over_websocket))

    def wait_until_ready(self) -> None:
        """Wait until all have their tokens; raises SystemExit if that takes too long, or fails."""
        try:
            self._process.submit(os.getpid).result(READY_TIMEOUT_S)
        except (BrokenExecutor, TimeoutError) as error:
            raise SystemExit("the process of the visitors did not start") from error

    def play(self, rate: float, seconds: float) -> "Future[VisitReport]":
        """Begin `rate` visits per second for some seconds."""
        return self._process.submit(_play, rate, seconds)

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.close()


def _prepare(address: tuple[str, int], key: Mapping[str, Any], users: int, over_websocket: bool) -> None:
    raise_file_limit()
    signer, now = Signer(key), time.time()
    prefix = f"{VISITOR}ws-" if over_websocket else VISITOR
    uids = [f"{prefix}{number}" for number in range(users)]
    tokens = {uid: signer.token(uid, audience="presence", now=now, ttl_s=TOKEN_TTL_S) for uid in uids}

    def login(uid: str) -> bytes:
        frame = protocol.encode(protocol.login(uid, id=1, token=tokens[uid]))
        return BINARY_REQUEST + message(BINARY, frame) if over_websocket else frame

    dialect = replace(WEBSOCKET if over_websocket else PRESENCE, login=login)
    _generators.append(VisitGenerator(address, dialect, users=users, prefix=prefix))


def _play(rate: float, seconds: float) -> VisitReport:
    return _generators[0].play(rate, seconds)


class Subscribers:
    """Consumer groups that are made, read for a few seconds, and are removed, one after the other.

    Attributes:
        groups: how many there have been.
        events: how many events they were given.
        error: what ended them before their time; "" for nothing.
    """

    def __init__(self, redis_url: str) -> None:
        self.groups = self.events = 0
        self.error = ""
        self._redis_url = redis_url
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._finished.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._finished.is_set():
            try:
                self._subscribe(f"soak-{secrets.token_hex(4)}")
                self._finished.wait(PAUSE_S)
            except RedisError:  # it is being restarted
                self._finished.wait(RETRY_S)
            except Exception as error:  # a thread that ends unheard looks like one that found nothing
                self.error = f"{type(error).__name__}: {error}"
                raise

    def _subscribe(self, group: str) -> None:
        self.groups += 1
        until = time.monotonic() + SUBSCRIBED_S
        try:
            with subscribe_sync(self._redis_url, group=group, consumer="one") as events:
                while time.monotonic() < until and not self._finished.is_set():
                    self.events += events.poll() is not None
        finally:
            with open_client(self._redis_url) as client:
                client.xgroup_destroy(Keys("presence", 1).events(0), group)


class RosterKeeper:
    """A backend that keeps the rosters of the crowd: it puts them, and adds users and removes them.

    Args:
        crowd: returns the uids of the crowd so far.

    Attributes:
        changes: made.
        error: what ended it before its time; "" for nothing.
    """

    def __init__(self, redis_url: str, crowd: Callable[[], Collection[str]]) -> None:
        self.changes = 0
        self.error = ""
        self._crowd = crowd
        self._rosters = PresenceRosters(redis_url)
        self._kept: dict[str, set[str]] = {}  # as they must be; not those whose last change may have failed
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._finished.set()
        self._thread.join()
        self._rosters.close()

    def wrong(self) -> list[str]:
        """Make no more changes; return the users whose roster in Redis is not what was put there."""
        self._finished.set()
        self._thread.join()
        return [uid for uid, kept in self._kept.items() if self._rosters.get(uid) != sorted(kept)]

    def _run(self) -> None:
        while not self._finished.wait(ROSTER_INTERVAL_S):
            crowd = [*self._crowd()]
            if len(crowd) < ROSTER_USERS:
                continue
            uid = random.choice(crowd)
            kept = self._kept.pop(uid, None)
            try:
                self._kept[uid] = self._change(uid, kept, {*random.sample(crowd, ROSTER_USERS)})
                self.changes += 1
            except (StoreError, StoreUnavailable):  # Redis is being restarted
                self._finished.wait(RETRY_S)
            except Exception as error:  # a thread that ends unheard looks like one that found nothing
                self.error = f"{type(error).__name__}: {error}"
                raise

    def _change(self, uid: str, kept: set[str] | None, some: set[str]) -> set[str]:
        """Change a roster; return what it is now."""
        if kept is None or len(kept) > 2 * ROSTER_USERS:
            self._rosters.put(uid, some)
            return some
        if random.random() < 0.5:
            self._rosters.add(uid, some)
            return kept | some
        gone = {*random.sample(sorted(kept), len(kept) // 2)}
        self._rosters.change(uid, remove=gone, add=some)
        return kept - gone | some
