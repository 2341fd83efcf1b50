"""One process of a server: a real `Node`, a machine to run it on, and sockets instead of transports."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from presence import protocol
from presence.common.clock import Clock
from presence.common.errors import StoreUnavailable
from presence.core.changes import Change, Op
from presence.core.registry import Handle
from presence.protocol import Code
from presence.server.ban_enforcer import BanEnforcer
from presence.server.node_assembly import Node, Stores
from presence.server.readiness import Readiness
from presence.store.ban_table import BanTable
from presence.store.redis_store import RedisLeaseTable, RedisStore
from presence.store.script_arguments import Shape
from tests.simulation.fake.client import connector
from tests.simulation.machine import Machine, NodeClock
from tests.simulation.runtime import Task, VirtualRuntime
from tests.simulation.sockets import SimulatedConnection
from tests.simulation.truth import TrueSession
from tests.simulation.wire import RedisConnection

if TYPE_CHECKING:
    from tests.simulation.devices import SimulatedDevice
    from tests.simulation.world import SimulatedWorld

URL: Final = "redis://simulated"
MAX_CONNECTIONS: Final = 10_000
START_PAUSE_S: Final = 0.25
READER_NEEDS_A_TURN: Final = 0.3  # of looks, where streams are read by tasks of their own


class Host:
    """One process of a server; a restart makes another.

    Args:
        place: the number of its machine.
        number: unique among all processes.
    """

    def __init__(self, world: SimulatedWorld, place: int, number: int) -> None:
        self._world = world
        plan = world.plan
        self.place = place
        self.name = f"host{number}"  # for the story
        self._random = random = Random(f"{plan.seed} {self.name}")
        rate = plan.rates[place % len(plan.rates)]
        self.clock = NodeClock(world.agenda, rate, offset_s=random.uniform(-60.0, 60.0))
        self.machine = Machine(world.agenda, self.clock, random)
        self.redis_connections = {  # its connections to Redis
            name: RedisConnection(world.agenda, world.redis, random)
            for name in ("relay", "cluster", "leases")
        }
        own_random = Random(f"{plan.seed} {self.name} bans")  # seeds without bans draw as if there were none
        self.redis_connections["bans"] = RedisConnection(world.agenda, world.redis, own_random)
        self.connections: list[SimulatedConnection] = []  # all that it ever accepted
        self.connection_being_read: SimulatedConnection | None = None  # the connection that is being read
        self.unreachable = 0  # how many faults keep all clients from it
        self.died_with_machine = False  # whether it died with its machine, which then resets nothing
        self.is_draining = False  # whether it was told to stop
        self._reads_by_tasks = random.random() < 0.2
        self._is_serving = False
        self._token_count = 0
        self.ids: set[str] = set()  # the node ids that it had
        self.runtime = VirtualRuntime(self.machine)
        self.node = self._make_node()  # what `presence serve` runs
        bans = BanTable(URL, world.keys, connector(world.redis, self.redis_connections["bans"].deliver))
        self.bans = BanEnforcer(self.node, bans, Clock(self.clock.monotonic, self.clock.wall), self.runtime)
        self._tasks = [Task(self.machine, self._main())]
        self.machine.at_end.append(self._end)

    def _make_node(self) -> Node:
        settings = self._world.plan.settings
        node = Node(
            settings,
            MAX_CONNECTIONS,
            self._stores(),
            Clock(self.clock.monotonic, self.clock.wall),
            self.runtime,
            token=self._next_token,
            describe=lambda: {"sent_at": self._world.agenda.now},
            max_changes=self._world.plan.max_changes,
        )
        append = node.outbox.append

        def record(change: Change) -> None:
            self._change_decided(change)
            skipped = node.outbox.statistics().skipped_total
            append(change)
            if node.outbox.statistics().skipped_total == skipped:
                self._world.judge.change_queued(self, change)

        node.outbox.append = record  # type: ignore[method-assign]
        return node

    def _stores(self) -> Stores:
        settings = self._world.plan.settings
        keys = self._world.keys
        shape = Shape(
            keys,
            maxlen=settings.stream_maxlen,
            seen_retention_ms=settings.seen_retention_days * 86_400_000,
            max_sessions=settings.max_sessions,
            session_policy=settings.session_policy,
            class_limits=settings.class_limits,
            device_events=settings.device_events,
        )
        connect = {
            name: connector(self._world.redis, connection.deliver)
            for name, connection in self.redis_connections.items()
        }
        return Stores(
            relay=RedisStore(URL, shape, connect["relay"]),
            cluster=RedisStore(URL, shape, connect["cluster"]),
            leases=RedisLeaseTable(URL, keys, settings.lease, connect["leases"]),
        )

    def _next_token(self) -> str:
        self._token_count += 1
        token = f"{self.name}.{self._token_count}"
        self.ids.add(f"node-{token}")
        self._world.host_of_node[f"node-{token}"] = self
        if self._token_count > 1:
            self._world.note("{} takes the id node-{}", self.name, token)
            self._world.operator.tell(self)
        return token

    async def _main(self) -> None:
        """As `Server.serve`."""
        while True:
            try:
                await self.node.start()
            except StoreUnavailable:
                await self.runtime.sleep(START_PAUSE_S)
            else:
                break
        node = self.node
        if self._world.plan.bans:
            await self.bans.refresh()
            self._tasks.append(Task(self.machine, self.bans.run()))
        self._tasks += [Task(self.machine, run) for run in (node.relay.run(), node.cluster.run())]
        self._ticking = Task(self.machine, node.ticker.run())
        node.declared_readiness = Readiness.READY
        self._is_serving = True
        self._world.note("{} serves", self.name)

    def accepts(self) -> bool:
        """Whether a connection is accepted, perhaps only by the kernel of a stopped process."""
        return self.machine.is_alive and self._is_serving and not self.is_draining

    # What befalls it

    def crash(self, *, silently: bool) -> None:
        if not self.machine.is_alive:
            return
        self.died_with_machine = silently
        self.machine.end()

    def drain(self) -> None:
        """As `Server.stop`."""
        if self.machine.is_alive and self._is_serving and not self.is_draining:
            self.machine.post(self._begin_drain)

    def _begin_drain(self) -> None:
        self.is_draining = True
        self.node.declared_readiness = Readiness.DRAINING
        self._ticking.cancel()

        def return_after() -> float:
            return round(self._random.uniform(0.1, 2.0), 2)

        def goodbye() -> bytes:
            return protocol.encode(protocol.goodbye(Code.SERVER_DRAIN, retry_after=return_after()))

        self.node.engine.refuse_logins(return_after)
        self.node.engine.terminator.disconnect_all(list(self.node.engine.registry), goodbye)
        self._tasks.append(Task(self.machine, self._finish_drain(len(self.node.engine.registry))))

    async def _finish_drain(self, sessions: int) -> None:
        await self.runtime.sleep(1.5)
        if not await self.node.relay.drain(self._world.plan.settings.drain_timeout - 2.0):
            await self.node.leave(sessions, 0.4)
        # Not from inside of a task of its own, which would be closed while it runs.
        self._world.agenda.after(0.0, self.machine.end)

    def _end(self) -> None:
        self._is_serving = False
        for task in self._tasks:
            task.cancel()
        for connection in self.connections:
            if not self.died_with_machine:
                connection.reset()

    # Transport

    def accept(self, connection: SimulatedConnection) -> None:
        """Tell the engine of a connection; its handle is its place among all."""
        connection.client = self.node.engine.opened(self, len(self.connections), "127.0.0.1")
        self.connections.append(connection)

    def disconnect(self, handle: Handle, farewell: bytes) -> None:
        self.connections[handle].disconnect(farewell)

    def send(self, handle: Handle, data: bytes) -> None:
        """Ignore it: no client asks for what is answered later."""

    def try_send(self, handle: Handle, data: bytes) -> bool:
        return True

    def poll_now(self, handle: Handle) -> bool:
        connection = self.connections[handle]
        if self._reads_by_tasks and self._random.random() < READER_NEEDS_A_TURN:
            self.machine.post_after(0.0, connection.read)
            return False
        connection.read()
        return True

    def receive_queue_age_s(self, handle: Handle, now: float) -> float:
        return (self._world.agenda.now - self.connections[handle].data_at) * self.clock.rate

    def acknowledged_bytes(self, handle: Handle) -> tuple[int, int] | None:
        return None

    def certificate(self, handle: Handle) -> None:
        return None

    # What it decides

    def _change_decided(self, change: Change) -> None:
        if change.op is Op.LOGIN:
            connection = self.connection_being_read
            assert connection is not None
            connection.life = life = TrueSession(
                change.session,
                (change.uid, change.device),
                self,
                connection,
                arrived=connection.data_at,
                handled=self._world.agenda.now,
                idle_timeout=change.idle_timeout_ms / 1000,
                readable=connection.data_at,
                fin_at=self._world.agenda.now if connection.has_fin else None,
            )
            self._world.truth.add(life)
        elif change.op is Op.UPDATE and (updated := self._world.truth.by_id.get(change.session)):
            updated.set_idle_timeout(change.idle_timeout_ms / 1000)
        self._world.judge.change_decided(self, change)

    def ban_told(self, device: SimulatedDevice) -> None:
        self._world.judge.bans.told(self, device.plan.uid, device.plan.device)

    def goodbye_sent(self, life: TrueSession, code: Code) -> None:
        self._world.judge.goodbye_sent(life, code)
