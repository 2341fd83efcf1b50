"""Clients that live on by themselves while a test does something else."""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator

from tests.live.swarm import Client, Swarm


class Crowd:
    """A swarm in a thread of its own.

    Attributes:
        clients: by uid; who is to fall silent is told so here.
    """

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live)
        self.clients: dict[str, Client] = {client.uid: client for client in swarm.clients}
        self._thread.start()

    def _live(self) -> None:
        while not self._over.is_set():
            self._swarm.run(1.0, until=self._over.is_set)

    def silence(self, uids: Iterable[str], within_s: float) -> None:
        """Let these fall silent one after the other."""
        chosen = list(uids)
        for place, uid in enumerate(chosen):
            self.clients[uid].silent_from = time.monotonic() + within_s * place / len(chosen)

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()


@contextlib.contextmanager
def crowd(address: tuple[str, int], uids: Iterable[str], *, beat_s: float) -> Iterator[Crowd]:
    """Clients that are logged in and beat for the length of a ``with`` block."""
    with Swarm(address, beat_s=beat_s) as swarm:
        swarm.log_in(uids)
        swarm.run(30, until=swarm.logged_in)
        assert swarm.logged_in()
        living = Crowd(swarm)
        try:
            yield living
        finally:
            living.stop()
