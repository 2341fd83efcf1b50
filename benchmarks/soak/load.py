"""What loads the server: visitors in a process of their own, and subscribers that come and go."""

import os
import secrets
import threading
import time
from collections.abc import Mapping
from concurrent.futures import BrokenExecutor, Future
from dataclasses import replace
from typing import Any

from benchmarks.load_generator import PRESENCE
from benchmarks.visits import VisitGenerator, VisitReport
from loadtest.processes import WorkerProcess
from presence import protocol
from presence.auth.token_signer import Signer
from presence.loadtest.server_address import raise_file_limit
from presence.store.keys import Keys
from presence.store.redis_client import RedisError, open_client
from presence.subscriber import subscribe_sync

VISITOR = "visitor-"
TOKEN_TTL_S = 7 * 86_400.0
SUBSCRIBED_S = 3.0  # how long a subscriber stays
PAUSE_S = 12.0  # until the next comes
RETRY_S = 0.5
READY_TIMEOUT_S = 120.0  # to sign a token for each visitor

_generators: list[VisitGenerator] = []  # of the process of the visitors


class Visitors:
    """A process whose clients log in with a token, log out half a second later, and return.

    Args:
        key: signs their tokens; an entry of a key file.
        users: how many clients there are.
    """

    def __init__(self, address: tuple[str, int], key: Mapping[str, Any], users: int) -> None:
        self._process = WorkerProcess(_prepare, (address, key, users))

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


def _prepare(address: tuple[str, int], key: Mapping[str, Any], users: int) -> None:
    raise_file_limit()
    signer, now = Signer(key), time.time()
    uids = [f"{VISITOR}{number}" for number in range(users)]
    tokens = {uid: signer.token(uid, audience="presence", now=now, ttl_s=TOKEN_TTL_S) for uid in uids}

    def login(uid: str) -> bytes:
        return protocol.encode(protocol.login(uid, id=1, token=tokens[uid]))

    _generators.append(VisitGenerator(address, replace(PRESENCE, login=login), users=users))


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
