"""A cluster as a whole: made, and its members killed, replaced and promoted."""

import contextlib
import itertools
import random
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from loadtest.redis_cluster.members import BUS_OFFSET, HOST, Member, agree, wait
from loadtest.redis_cluster.moves import Move, move_at_once
from presence.embedded import find_binary
from presence.store.client import RedisError

SLOTS: Final = 16384
PORTS: Final = range(12_000, 22_000)  # these and their buses lie below the ports that the kernel gives out
NODE_TIMEOUT_MS: Final = 1000  # after so long a silent member is suspected, and soon replaced
START_TIMEOUT_S: Final = 20.0
FAILOVER_TIMEOUT_S: Final = 30.0
TAKE_OVER_S: Final = 2.0  # a graceful failover takes a hundredth of that


class Cluster:
    """A Redis Cluster that serves all slots once it is made; use it in a ``with`` block.

    Args:
        primaries: how many; the slots are spread evenly over them.
        replicas: of each primary.
        binary: path of a server; `presence.embedded.find_binary()` without it.
        node_timeout_ms: after so long members replace one that is silent.
        announce: given each member's port, returns the port that it announces: where a proxy stands before
            it. Members reach each other there too, but for the bus and the classic move.
        options: further ``--name value`` arguments of every server.

    Attributes:
        members: all, the first ones primaries at the start, their replicas behind them in the same order.
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
        binary = binary or find_binary()
        options = ("--cluster-node-timeout", str(node_timeout_ms), *options)
        self.members: list[Member] = []
        for port in itertools.islice(_free_ports(), primaries * (1 + replicas)):
            folder = self._folder / str(port)
            folder.mkdir()
            self.members.append(Member(binary, folder, port, announce(port), secrets.token_hex(20), options))
        self.url = "redis+cluster://" + ",".join(f"{HOST}:{each.announced}" for each in self.members)
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
        """End all processes and remove their data."""
        for member in self.members:
            member.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _create(self) -> None:
        for member in self.members:
            (member.folder / "nodes.conf").write_text(self._configuration(member))
            member.spawn()
        self.wait_until_ok(START_TIMEOUT_S)

    def _configuration(self, me: Member) -> str:
        """Return what a member finds written: all members, who replicates whom, and whose slots are whose."""
        lines = []
        for number, each in enumerate(self.members):
            primary = number % self._primaries
            address = f"{each.name} {HOST}:{each.announced}@{each.bus}"
            flags = "myself," if each is me else ""
            if number >= self._primaries:
                of = self.members[primary].name
                lines.append(f"{address} {flags}slave {of} 0 0 {primary + 1} connected")
            else:
                first, end = (SLOTS * n // self._primaries for n in (primary, primary + 1))
                lines.append(f"{address} {flags}master - 0 0 {primary + 1} connected {first}-{end - 1}")
        return "\n".join([*lines, f"vars currentEpoch {self._primaries} lastVoteEpoch 0", ""])

    def wait_until_ok(self, seconds: float = FAILOVER_TIMEOUT_S) -> None:
        """Wait until all that run find the cluster whole and agree on who serves what, and replicas have what
        their primaries have.

        Raises:
            TimeoutError: it does not come about in time.
            RuntimeError: a member ended.
        """
        running = [member for member in self.members if member.is_running]

        def are_well() -> bool:
            return all(map(Member.check, running)) and agree(running)

        wait(are_well, seconds, f"all of {len(running)} members are well")

    def start(self, member: Member) -> None:
        """Start a member that was killed: empty, unless options keep its data; wait until it answers."""
        member.spawn()
        wait(lambda: bool(member.info("INFO", "server")), START_TIMEOUT_S, "the member answers")

    def slot_of(self, key: str) -> int:
        """Return the slot of a key."""
        return int(next(each for each in self.members if each.is_running).call("CLUSTER", "KEYSLOT", key))

    def primary_of(self, where: int | str) -> Member:
        """Return who serves a slot, or a key, by the primary's own word.

        Raises:
            LookupError: nobody does now.
        """
        slot = self.slot_of(where) if isinstance(where, str) else where
        for member in self.members:
            with contextlib.suppress(RedisError):
                if member.is_running and any(slot in each for each in member.ranges()):
                    return member
        raise LookupError(f"nobody serves slot {slot}")

    def replicas_of(self, primary: Member) -> list[Member]:
        """Return the running members that say they replicate it."""
        return [each for each in self.members if each.is_running and each.replicates == primary.announced]

    def primaries(self) -> list[Member]:
        """Return the running members that hold themselves for primaries."""
        return [each for each in self.members if each.is_running and each.is_primary]

    def move(self, where: int | str, target: Member) -> Move:
        """Return the classic move of a slot, or of a key's slot, to another primary; nothing is done yet."""
        slot = self.slot_of(where) if isinstance(where, str) else where
        return Move(slot, self.primary_of(slot), target, [each for each in self.members if each.is_running])

    def move_at_once(self, slots: Iterable[int], target: Member) -> None:
        """Move slots of any primaries to another; see `moves.move_at_once`."""
        by_source: dict[Member, list[int]] = {}
        for slot in slots:
            by_source.setdefault(self.primary_of(slot), []).append(slot)
        for source, its_slots in by_source.items():
            move_at_once(its_slots, source, target)

    def fail_over(self, primary: Member, *, is_graceful: bool = False) -> Member:
        """Let a replica take the place of its primary; return it, once all others know.

        Args:
            primary: it is killed; with `is_graceful` it goes on as a replica, and no write is lost.
            is_graceful: whether the replica is told to take over (CLUSTER FAILOVER).

        Raises:
            TimeoutError: it does not come about in time.
        """
        wait(lambda: bool(self.replicas_of(primary)), FAILOVER_TIMEOUT_S, "the primary has a replica")
        replicas = self.replicas_of(primary)
        if is_graceful:
            # Who has just voted about the same slots does not vote again so soon: it may take two.
            wait(lambda: _takes_over(replicas[0]), FAILOVER_TIMEOUT_S, "the replica took over as told")
        else:
            primary.kill()
            wait(lambda: any(map(_is_primary, replicas)), FAILOVER_TIMEOUT_S, "a replica took over")
        self.wait_until_ok()
        return next(filter(_is_primary, replicas))


def _takes_over(replica: Member) -> bool:
    """Tell a replica to take its primary's place; return whether it has, a little later."""
    if not replica.is_primary:
        replica.call("CLUSTER", "FAILOVER")
    with contextlib.suppress(TimeoutError):
        wait(lambda: replica.is_primary, TAKE_OVER_S, "")
    return replica.is_primary


def _is_primary(member: Member) -> bool:
    return member.is_primary


def _free_ports() -> Iterator[int]:
    """Yield ports that are free, and whose bus's port is."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):  # tests seed `random`, each process alike
        with socket.socket() as client_side, socket.socket() as bus_side, contextlib.suppress(OSError):
            client_side.bind((HOST, port))
            bus_side.bind((HOST, port + BUS_OFFSET))
            yield port
