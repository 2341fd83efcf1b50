"""The processes of a Redis Cluster, each for itself."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from presence.embedded import die_with_parent
from presence.store.client import RedisError, open_client

HOST: Final = "127.0.0.1"
LOOK_S: Final = 0.01
BUS_OFFSET: Final = 10_000  # a member's bus listens so far above its port


class Member:
    """One process of a cluster.

    Args:
        binary: path of the server.
        folder: of its own, for its data and its configuration.
        port: where it listens.
        announced: the port that it tells clients and other members, where a proxy may stand.
        name: its id in the cluster, 40 hexadecimal digits.
        options: further arguments of the server.

    Attributes:
        client: a connection to it, never by way of the announced port.
    """

    def __init__(
        self, binary: str, folder: Path, port: int, announced: int, name: str, options: tuple[str, ...]
    ) -> None:
        self.name, self.port, self.announced, self.folder = name, port, announced, folder
        self.client: Any = open_client(f"redis://{HOST}:{port}")  # redis-py types answers for all decodings
        self._raw: Any = open_client(f"redis://{HOST}:{port}")
        self._raw.response_callbacks.clear()
        self._command = [
            *(binary, "--bind", HOST, "--port", str(port), "--dir", str(folder), "--daemonize", "no"),
            *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
            *("--cluster-announce-port", str(announced), "--cluster-announce-bus-port", str(self.bus)),
            # A replica takes over however old its data, and stays with its primary.
            *("--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no"),
            *("--repl-diskless-sync-delay", "0", "--save", "", "--appendonly", "no", *options),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bus(self) -> int:
        """The port on which members talk to each other."""
        return self.port + BUS_OFFSET

    @property
    def is_running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        """Start the process, and do not wait for it."""
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - it makes one system call
            )

    def close(self) -> None:
        """End the process and the connections to it."""
        self.kill()
        self.client.close()
        self._raw.close()

    def kill(self) -> None:
        """End the process at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """Stop the process: it answers nothing, and connections stay as they are."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def call(self, *words: str | int) -> Any:
        """Send a command, and return its answer as it is: bytes, numbers and lists of them."""
        return self._raw.execute_command(*words)

    def info(self, *words: str) -> dict[str, str]:
        """Return the answer to INFO or CLUSTER INFO; empty while it gives none."""
        with contextlib.suppress(RedisError):
            lines = self.call(*words).decode().splitlines()
            return dict(line.split(":", 1) for line in lines if ":" in line)
        return {}

    @property
    def is_primary(self) -> bool:
        """Whether it holds itself for a primary; False while it does not answer."""
        return self.info("INFO", "replication").get("role") == "master"

    def ranges(self) -> list[range]:
        """Return the slots that it serves as it sees it; none for a replica.

        Raises:
            RedisError: it does not answer.
        """
        lines = self.call("CLUSTER", "NODES").decode().splitlines()
        (mine,) = (fields for line in lines if "myself" in (fields := line.split())[2])
        spans = [word.partition("-") for word in mine[8:] if not word.startswith("[")]
        return [range(int(first), int(last or first) + 1) for first, _, last in spans]

    def view(self) -> dict[str, tuple[str, list[str]]]:
        """Return by name the primaries with their epochs and slots as it sees them.

        Nothing if it does not answer.
        """
        with contextlib.suppress(RedisError):
            lines = [line.split() for line in self.call("CLUSTER", "NODES").decode().splitlines()]
            spans = {fields[0]: [word for word in fields[8:] if not word.startswith("[")] for fields in lines}
            return {fields[0]: (fields[6], slots) for fields in lines if (slots := spans[fields[0]])}
        return {}

    @property
    def replicates(self) -> int:
        """The announced port of its primary; 0 if it is one itself or does not answer."""
        return int(self.info("INFO", "replication").get("master_port", 0))

    def check(self) -> bool:
        """Return whether it finds the cluster whole, and has all of its primary's data if it is a replica.

        Raises:
            RuntimeError: the process has ended.
        """
        if not self.is_running:
            log = (self.folder / "server.log").read_text(errors="replace").splitlines()
            raise RuntimeError(f"a member of the cluster ended: {' / '.join(log[-3:])}")
        is_whole = self.info("CLUSTER", "INFO").get("cluster_state") == "ok"
        link = self.info("INFO", "replication")
        return is_whole and bool(link) and link.get("master_link_status", "up") == "up"


def agree(members: Iterable[Member]) -> bool:
    """Return whether all of these see the same slots at the same primaries, at the same epochs."""
    first, *others = (member.view() for member in members)
    return bool(first) and all(view == first for view in others)


def wait(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until something is so.

    Args:
        condition: whether it is.
        seconds: how long to wait at most.
        what: it is, in words.

    Raises:
        TimeoutError: it did not come about in time.
    """
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"Redis Cluster: not within {seconds:g} s: {what}")
        time.sleep(LOOK_S)
