"""A real Redis Cluster of processes on this machine, whose members can be killed, frozen and promoted.

The members do not meet each other by gossip: each starts with a written configuration that names them all,
so that a cluster serves some two seconds after its start (so long a member waits by itself before it takes
writes). Members end with the thread that started them (Linux), whatever becomes of it.
"""

import contextlib
import itertools
import random
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from loadtest.servers import redis_binary
from presence.store.embedded import die_with_parent
from presence.store.redis_client import RedisError, open_client

HOST: Final = "127.0.0.1"
POLL_INTERVAL_S: Final = 0.01
BUS_OFFSET: Final = 10_000  # a member's bus listens so far above its port
MIGRATE_TIMEOUT_MS: Final = 5000  # for one call; keys move in milliseconds
MOVE_TIMEOUT_S: Final = 30.0
SLOTS: Final = 16384
PORTS: Final = range(12_000, 22_000)  # these and their buses lie below the ports that the kernel gives out
NODE_TIMEOUT_MS: Final = 1000  # after so long a silent member is suspected, and soon replaced
START_TIMEOUT_S: Final = 20.0
FAILOVER_TIMEOUT_S: Final = 30.0
TAKEOVER_TIMEOUT_S: Final = 2.0  # a graceful failover takes a hundredth of that


class Member:
    """One process of a cluster.

    Attributes:
        name: its id in the cluster, 40 hexadecimal digits.
        port, announced_port: where it listens, and what it announces: a proxy may stand there.
        client: a connection to it, never by the announced port.
    """

    def __init__(
        self, binary: str, folder: Path, port: int, announced: int, name: str, options: tuple[str, ...]
    ) -> None:
        self.name, self.port, self.announced_port, self.folder = name, port, announced, folder
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
        """Start the process without waiting for it."""
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
        self.kill()
        self.client.close()
        self._raw.close()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """Stop the process: it answers nothing, and its connections stay."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def call(self, *words: str | int) -> Any:
        """Send a command; return the raw answer: bytes, numbers and lists of them."""
        return self._raw.execute_command(*words)

    def info(self, *words: str) -> dict[str, str]:
        """Return the answer to INFO or CLUSTER INFO; empty without one."""
        with contextlib.suppress(RedisError):
            lines = self.call(*words).decode().splitlines()
            return dict(line.split(":", 1) for line in lines if ":" in line)
        return {}

    @property
    def is_primary(self) -> bool:
        """Whether it regards itself as a primary; False without an answer."""
        return self.info("INFO", "replication").get("role") == "master"

    def slot_ranges(self) -> list[range]:
        """Return the slots that it serves in its own view; none for a replica, or without an answer."""
        spans = (word.partition("-") for word in self.view().get(self.name, ("", []))[1])
        return [range(int(first), int(last or first) + 1) for first, _, last in spans]

    def view(self) -> dict[str, tuple[str, list[str]]]:
        """Return, by name, the epoch and slots of each primary in its view; empty without an answer."""
        with contextlib.suppress(RedisError):
            lines = [line.split() for line in self.call("CLUSTER", "NODES").decode().splitlines()]
            # In brackets are slots that are on their way.
            owned = {name: (at[5], [word for word in at[7:] if word[0] != "["]) for name, *at in lines}
            return {name: each for name, each in owned.items() if each[1]}
        return {}

    @property
    def primary_port(self) -> int:
        """The announced port of its primary; 0 for a primary, or without an answer."""
        return int(self.info("INFO", "replication").get("master_port", 0))

    def is_ready(self) -> bool:
        """Return whether it regards the cluster as complete, and is in sync if it is a replica.

        Raises:
            RuntimeError: the process has ended.
        """
        if not self.is_running:
            log = (self.folder / "server.log").read_text(errors="replace").splitlines()
            raise RuntimeError(f"a member of the cluster ended: {' / '.join(log[-3:])}")
        is_whole = self.info("CLUSTER", "INFO").get("cluster_state") == "ok"
        link = self.info("INFO", "replication")
        return is_whole and bool(link) and link.get("master_link_status", "up") == "up"


def have_same_view(members: Iterable[Member]) -> bool:
    """Return whether all members see the same slots at the same primaries, at the same epochs."""
    first, *others = (member.view() for member in members)
    return bool(first) and all(view == first for view in others)


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until a condition holds; raises TimeoutError that names it."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"Redis Cluster: not within {seconds:g} s: {what}")
        time.sleep(POLL_INTERVAL_S)


class Move:
    """The key-by-key move of a slot: `begin`, `step` until it returns 0, `finish`.

    Meanwhile the source answers ASK for keys that it has not (any more), and TRYAGAIN for calls with keys of
    both kinds; the target accepts only calls with ASKING. All running `members` have to know the result
    before the slot moves again.
    """

    def __init__(self, slot: int, source: Member, target: Member, members: Sequence[Member]) -> None:
        self.slot, self.source, self.target = slot, source, target
        self._members = members

    def begin(self) -> None:
        """Open the slot on both sides; no key moves yet."""
        self.target.call("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.source.name)
        self.source.call("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.target.name)

    def step(self, keys: int = 1) -> int:
        """Move at most `keys` keys; return how many there were to move."""
        names = self.source.call("CLUSTER", "GETKEYSINSLOT", self.slot, keys)
        if names:
            to = (HOST, self.target.port, "", 0, MIGRATE_TIMEOUT_MS)
            self.source.call("MIGRATE", *to, "KEYS", *names)
        return len(names)

    def finish(self) -> None:
        """Give the slot, which must have no key left, to the target; return when all members know.

        Otherwise a slot that moves straight back may be lost: members may still receive news of the first
        move that contradict the second, until each of the two primaries regards the other as the owner.
        """
        others = [
            each for each in self._members if each not in (self.target, self.source) and each.is_primary
        ]
        for member in (self.target, self.source, *others):
            member.call("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.name)
        wait_until(
            lambda: have_same_view(self._members), MOVE_TIMEOUT_S, f"all know where slot {self.slot} is"
        )

    def run(self) -> int:
        """Move the slot from beginning to end; return how many keys it had."""
        self.begin()
        moved = 0
        while count := self.step():
            moved += count
        self.finish()
        return moved


def move_atomically(slots: Iterable[int], source: Member, target: Member) -> None:
    """Move slots as a whole (Valkey from version 9): the source serves them until the target has all."""
    words = [word for slot in slots for word in (slot, slot)]
    before = {job[b"name"] for job in _migrations(source)}
    source.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", *words, "NODE", target.name)

    def is_done() -> bool:
        mine = [job for job in _migrations(source) if job[b"name"] not in before]
        if broken := [job for job in mine if job[b"state"] in {b"failed", b"cancelled"}]:
            raise RuntimeError(f"Redis Cluster: slots did not move: {broken}")
        return all(job[b"state"] == b"success" for job in mine)

    wait_until(is_done, MOVE_TIMEOUT_S, "slots moved at once")


def _migrations(member: Member) -> list[dict[bytes, bytes]]:
    """Return a member's atomic slot migrations, old ones too."""
    answer = member.call("CLUSTER", "GETSLOTMIGRATIONS")
    return [dict(zip(job[::2], job[1::2], strict=True)) for job in answer]


class Cluster:
    """A Redis Cluster that serves all slots; for a ``with`` block.

    Args:
        replicas: of each primary.
        binary: path of a server; by default `loadtest.servers.redis_binary()`.
        node_timeout_ms: after which a silent member is replaced.
        announce: returns the port that a member announces for its own: that of a proxy. Members reach each
            other there too, except on the bus and in key-by-key moves.
        options: further ``--name value`` arguments of every server.

    Attributes:
        members: the first primaries, then their replicas in the same order.
        url: names the announced ports of all.
    """

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 0,
        *,
        binary: str | None = None,
        node_timeout_ms: int = NODE_TIMEOUT_MS,
        announce: Callable[[int], int] = lambda port: port,
        options: tuple[str, ...] = (),
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="cluster-"))
        self._primaries = primaries
        binary = binary or redis_binary()
        options = ("--cluster-node-timeout", str(node_timeout_ms), *options)
        self.members: list[Member] = []
        for port in itertools.islice(_free_ports(), primaries * (1 + replicas)):
            folder = self._folder / str(port)
            folder.mkdir()
            self.members.append(Member(binary, folder, port, announce(port), secrets.token_hex(20), options))
        self.url = "redis+cluster://" + ",".join(f"{HOST}:{each.announced_port}" for each in self.members)
        try:
            self._create()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        for member in self.members:
            member.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _create(self) -> None:
        for member in self.members:
            (member.folder / "nodes.conf").write_text(self._configuration(member))
            member.spawn()
        self.wait_until_ok(START_TIMEOUT_S)

    def _configuration(self, me: Member) -> str:
        """Return a member's `nodes.conf`: all members, their primaries, and whose slots are whose."""
        lines = []
        for number, each in enumerate(self.members):
            primary = number % self._primaries
            address = f"{each.name} {HOST}:{each.announced_port}@{each.bus}"
            flags = "myself," if each is me else ""
            if number >= self._primaries:
                of = self.members[primary].name
                lines.append(f"{address} {flags}slave {of} 0 0 {primary + 1} connected")
            else:
                first, end = (SLOTS * n // self._primaries for n in (primary, primary + 1))
                lines.append(f"{address} {flags}master - 0 0 {primary + 1} connected {first}-{end - 1}")
        return "\n".join([*lines, f"vars currentEpoch {self._primaries} lastVoteEpoch 0", ""])

    def wait_until_ok(self, seconds: float = FAILOVER_TIMEOUT_S) -> None:
        """Wait until all running members agree that the cluster is complete, and replicas are in sync."""
        running = [member for member in self.members if member.is_running]
        what = f"all of {len(running)} members are well"
        wait_until(lambda: all(map(Member.is_ready, running)) and have_same_view(running), seconds, what)

    def start(self, member: Member) -> None:
        """Start a member that was killed, empty unless options keep its data; wait until it answers."""
        member.spawn()
        wait_until(lambda: bool(member.info("INFO", "server")), START_TIMEOUT_S, "the member answers")

    def slot_of(self, key: str) -> int:
        return int(next(each for each in self.members if each.is_running).call("CLUSTER", "KEYSLOT", key))

    def primary_of(self, where: int | str) -> Member:
        """Return the primary that serves a slot, or a key, in its own view.

        Raises:
            LookupError: no member does now.
        """
        slot = self.slot_of(where) if isinstance(where, str) else where
        for member in self.members:
            if member.is_running and any(slot in each for each in member.slot_ranges()):
                return member
        raise LookupError(f"nobody serves slot {slot}")

    def replicas_of(self, primary: Member) -> list[Member]:
        """Return the running members that replicate it."""
        return [
            each for each in self.members if each.is_running and each.primary_port == primary.announced_port
        ]

    def primaries(self) -> list[Member]:
        return [each for each in self.members if each.is_running and each.is_primary]

    def move(self, where: int | str, target: Member) -> Move:
        """Return the key-by-key move of a slot, or of a key's slot; nothing is done yet."""
        slot = self.slot_of(where) if isinstance(where, str) else where
        return Move(slot, self.primary_of(slot), target, [each for each in self.members if each.is_running])

    def move_atomically(self, slots: Iterable[int], target: Member) -> None:
        """Move slots of any primaries to another, atomically."""
        by_source: dict[Member, list[int]] = {}
        for slot in slots:
            by_source.setdefault(self.primary_of(slot), []).append(slot)
        for source, its_slots in by_source.items():
            move_atomically(its_slots, source, target)

    def fail_over(self, primary: Member, *, is_graceful: bool = False) -> Member:
        """Kill a primary, or demote it gracefully (CLUSTER FAILOVER); return the replica that took over."""
        wait_until(lambda: bool(self.replicas_of(primary)), FAILOVER_TIMEOUT_S, "the primary has a replica")
        replicas = self.replicas_of(primary)
        if is_graceful:
            # Who has just voted about the same slots does not vote again so soon: it may take two.
            wait_until(lambda: _takes_over(replicas[0]), FAILOVER_TIMEOUT_S, "the replica took over as told")
        else:
            primary.kill()
            wait_until(lambda: any(map(_is_primary, replicas)), FAILOVER_TIMEOUT_S, "a replica took over")
        self.wait_until_ok()
        return next(filter(_is_primary, replicas))


def _takes_over(replica: Member) -> bool:
    """Tell a replica to replace its primary; return whether it has, after up to `TAKEOVER_TIMEOUT_S`."""
    if not replica.is_primary:
        replica.call("CLUSTER", "FAILOVER")
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: replica.is_primary, TAKEOVER_TIMEOUT_S, "")
    return replica.is_primary


def _is_primary(member: Member) -> bool:
    return member.is_primary


def _free_ports() -> Iterator[int]:
    """Yield ports that are free together with their bus ports."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):  # tests seed `random`, each process alike
        with socket.socket() as client_side, socket.socket() as bus_side, contextlib.suppress(OSError):
            client_side.bind((HOST, port))
            bus_side.bind((HOST, port + BUS_OFFSET))
            yield port
