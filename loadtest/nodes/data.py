"""A Redis that can be stopped, killed and started again at the same address, and what stands in it."""

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.scale.reader import event_of
from loadtest.scale.verdict import Event, WallClock
from presence.embedded import find_binary
from presence.store.client import open_client
from presence.store.keys import Keys
from presence.subscriber.events import read_entry

START_TIMEOUT_S = 8.0
LOOK_S = 0.005


class Difference(NamedTuple):
    """Users whose record tells of a session that does not live, and those whose live session has none."""

    ghosts: set[str]
    missing: set[str]


class Data:
    """A server on a Unix socket, with a directory of its own.

    Args:
        keep: whether every write survives a kill (append-only file); else only what `save` has written does.

    Attributes:
        path: of the socket.
        url: the same as an address.
        client: a connection to it.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="nodes-"))
        self.path = str(self._folder / "redis.sock")
        self._command = [
            find_binary(),
            *("--port", "0", "--unixsocket", self.path, "--dir", str(self._folder), "--save", ""),
            *("--appendonly", "yes" if keep else "no", "--appendfsync", "always"),
        ]
        self.url = f"unix://{self.path}"
        self.client: Any = open_client(self.url)  # redis-py types its answers for all decodings at once
        self.start()

    def __enter__(self) -> "Data":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.thaw()
        self.client.close()
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start it, and wait until it answers with its data loaded."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        give_up = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit("Redis did not start")
            time.sleep(LOOK_S)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(self.path)
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith(b"+PONG")
        return False

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Stop the process: it answers nothing, and connections stay as they are."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self._process.send_signal(signal.SIGCONT)

    def compare(self, keys: Keys, live: Mapping[str, str]) -> Difference:
        """Hold the records against the sessions that live: uid to session."""
        found: dict[str, set[str]] = {}
        for shard in range(keys.shards):
            for uid, text in self.client.hgetall(keys.online(shard)).items():
                found[uid.decode()] = {each["session"] for each in json.loads(text)["sessions"].values()}
        return Difference(
            {uid for uid, sessions in found.items() if sessions != {live.get(uid)}},
            {uid for uid, session in live.items() if session not in found.get(uid, ())},
        )

    def online(self, keys: Keys) -> int:
        """Return how many users have a record."""
        return sum(self.client.hlen(keys.online(shard)) for shard in range(keys.shards))

    def fields(self, keys: Keys, node: str) -> int:
        """Return how many fields a node's hashes have: its sessions, and a few others in each shard."""
        with self.client.pipeline(transaction=False) as pipe:
            for shard in range(keys.shards):
                pipe.hlen(keys.node(shard, node))
            return sum(pipe.execute())

    def owned(self, keys: Keys, node: str) -> int:
        """Return how many sessions a node owns."""
        names = (name for shard in range(keys.shards) for name in self.client.hkeys(keys.node(shard, node)))
        return sum(b" " in name for name in names)

    def events(self, keys: Keys) -> list[Event]:
        """Return all that stands in the streams now."""
        clock = WallClock(time.time() - time.monotonic())
        return [
            event_of(read_entry(shard, raw), time.monotonic(), clock)
            for shard in range(keys.shards)
            for raw in self.client.xrange(keys.events(shard))
        ]

    def nodes(self, keys: Keys) -> dict[str, dict[str, Any]]:
        """Return what each node tells of itself beside its lease: pid, sessions and more."""
        stats = self.client.hgetall(keys.lease_keys[2])
        return {node.decode(): json.loads(text) for node, text in stats.items()}

    def sweeper(self, keys: Keys, node: str) -> str:
        """Return the id of the node that sweeps another; "" if none does."""
        row = self.client.hget(keys.lease_keys[1], node) or b""
        _, *certificate = row.decode().split()
        return certificate[0] if certificate else ""

    def is_buried(self, keys: Keys, node: str) -> bool:
        """Whether a dead node was swept to the end."""
        return not self.client.hexists(keys.lease_keys[1], node)
