"""Devices: they connect, log in, send keepalives and follow their plan, some as the client library does."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from presence import protocol
from presence.protocol import KEEPALIVE, Code, Kind, Packet
from tests.simulation.machine import UNIX_START_S
from tests.simulation.plan import Action, ChosenRooms, DevicePlan, ShownStatus
from tests.simulation.sockets import LOGOUT_FRAME, ONE_WAY_S, SimulatedConnection

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.world import SimulatedWorld

LOGIN_TIMEOUT_S: Final = 5.0
RETURN_S: Final = (0.2, 3.0)
MAX_UNANSWERED: Final = 2
LATE_MARGIN_S: Final = 0.06  # before the time-out: so near, bytes often wait while the tick goes by


class SimulatedDevice:
    """One device; see `DevicePlan`."""

    def __init__(self, world: SimulatedWorld, plan: DevicePlan) -> None:
        self._world = world
        self._agenda = world.agenda
        self.plan = plan
        self._random = Random(f"{world.plan.seed} {plan.name}")
        self.main: SimulatedConnection | None = None  # the connection that it cares for
        self.may_not_return = False  # whether it was told to stay away
        self._is_banned = False  # whether that was because of a ban
        self.wants_connection = True
        self.cut_off_until = 0.0  # true time until which its network is dead
        self._late_until = 0.0
        self._connecting = False
        wishes = [each.idle_timeout for each in plan.statuses if each.idle_timeout is not None]
        self._keepalive_s = 0.4 * min(plan.idle_timeout or world.plan.settings.idle_timeout, *wishes, 1e6)
        self._shown = ShownStatus(0.0)
        self._rooms: frozenset[str] = frozenset()
        self._agenda.at(plan.start, self.connect)
        for action in plan.actions:
            self._agenda.at(action.at, self._runner(action))
        for shown in plan.statuses:
            self._agenda.at(shown.at, lambda shown=shown: self._change_status(shown))  # type: ignore[misc]
        for chosen in plan.rooms:
            self._agenda.at(chosen.at, lambda chosen=chosen: self._change_rooms(chosen))  # type: ignore[misc]

    def is_cut(self, host: Host) -> bool:
        """Whether nothing passes between the device and a process."""
        return self._agenda.now < self.cut_off_until or host.unreachable > 0

    # Connecting

    def connect(self) -> None:
        """Log in somewhere, unless it is connected or does not want to be."""
        if self.main is not None or self._connecting or self.may_not_return or not self.wants_connection:
            return
        if self._agenda.now < self.cut_off_until:
            if self.cut_off_until < float("inf"):
                self._agenda.at(self.cut_off_until + self._random.uniform(*RETURN_S), self.connect)
            return
        host = self._world.pick_host(self._random)
        if host is None or host.unreachable:
            self._connect_later(self._random.uniform(*RETURN_S))
            return
        self._connecting = True

        def arrive() -> None:
            self._connecting = False
            if not host.accepts() or not self.wants_connection:
                self._connect_later(self._random.uniform(*RETURN_S))
                return
            self.main = connection = SimulatedConnection(self._agenda, host, self, self._random)
            host.accept(connection)
            connection.send(self._login_frame(), self._shown, self._rooms)
            self._agenda.after(LOGIN_TIMEOUT_S, lambda: self._check_login(connection))

        self._agenda.after(self._random.uniform(*ONE_WAY_S), arrive)

    def _login_frame(self) -> bytes:
        plan, shown = self.plan, self._shown
        login = protocol.login(
            plan.uid,
            device=plan.device or None,
            device_class=plan.device_class or None,
            idle_timeout=plan.idle_timeout,
            meta=_map(shown.meta) or None,
            private=_map(shown.private) or None,
            status=None if shown.status == "online" else shown.status,
            until_ms=_unix_ms(shown.ends_at),
            rooms=sorted(self._rooms) or None,
            id=1,
        )
        return protocol.encode(login)

    def _check_login(self, connection: SimulatedConnection) -> None:
        if connection is self.main and not connection.is_login_read:
            connection.close()
            self.connection_lost(connection)

    def _connect_later(self, seconds: float) -> None:
        self._agenda.after(seconds, self.connect)

    # Beating

    def _send_keepalive(self, connection: SimulatedConnection, unread: int) -> None:
        if not connection.is_open:
            return
        is_unread = bool(connection.unread) and connection is self.main
        is_gone = not connection.host.machine.is_alive or self.is_cut(connection.host)
        unread = unread + 1 if self.plan.asks and (is_unread or is_gone) else 0
        if unread >= MAX_UNANSWERED:
            self._world.note("{} gives up on {}", self.plan.name, connection.host.name)
            if is_unread:
                connection.close()
            self.connection_lost(connection)
            return
        connection.send(KEEPALIVE)
        self._agenda.after(
            self._next_keepalive_s(connection.host), lambda: self._send_keepalive(connection, unread)
        )

    def _next_keepalive_s(self, host: Host) -> float:
        if self._agenda.now < self._late_until:
            return self._keepalive_s / 0.4 / host.clock.rate - LATE_MARGIN_S * self._random.uniform(1.0, 2.0)
        return self._keepalive_s * self._random.uniform(0.9, 1.1)

    # What it receives

    def receive(self, connection: SimulatedConnection, packet: Packet) -> None:
        match packet.kind:
            case Kind.OK if not connection.is_login_read:
                connection.is_login_read = True
                self._send_status(connection)
                self._send_rooms(connection, as_difference=False)
                self._agenda.after(
                    self._next_keepalive_s(connection.host), lambda: self._send_keepalive(connection, 0)
                )
            case Kind.GOODBYE | Kind.ERROR:
                self._handle_goodbye(
                    connection, Code(packet.payload["code"]), packet.payload.get("retry_after")
                )

    def _handle_goodbye(self, connection: SimulatedConnection, code: Code, retry_after: float | None) -> None:
        connection.abandon()
        if connection is not self.main:
            return
        self.main = None
        self._is_banned = code is Code.BANNED and retry_after is None
        is_full = code is Code.SESSION_LIMIT and self._agenda.now > self._world.plan.heal_at
        if code.allows_return(retry_after) and not is_full:  # it gives up, or the end would never be quiet
            self._connect_later(retry_after or self._random.uniform(*RETURN_S))
        else:
            self.may_not_return = True

    def pardon(self) -> None:
        """Learn that a ban was lifted."""
        if self._is_banned:
            self.may_not_return = False
            self.connect()

    def connection_lost(self, connection: SimulatedConnection) -> None:
        connection.abandon()
        if connection is self.main:
            self.main = None
            self._connect_later(self._random.uniform(*RETURN_S))

    # What it does

    def _change_status(self, shown: ShownStatus) -> None:
        self._world.note("{} says {}", self.plan.name, shown)
        self._shown = shown
        if self.main is not None and self.main.is_login_read:
            self._send_status(self.main)

    def _send_status(self, connection: SimulatedConnection) -> None:
        """Send the device's status and meta, unless this connection has sent them."""
        shown = self._shown
        if connection.sent_status is not shown:
            meta, private = _map(shown.meta), _map(shown.private)
            update = protocol.update(
                meta=meta,
                private=private,
                status=shown.status,
                until_ms=_unix_ms(shown.ends_at),
                idle_timeout=shown.idle_timeout,
                id=3,
            )
            connection.send(protocol.encode(update), shown)

    def _change_rooms(self, chosen: ChosenRooms) -> None:
        self._world.note("{} goes to {}", self.plan.name, sorted(chosen.rooms))
        self._rooms = chosen.rooms
        if self.main is not None and self.main.is_login_read:
            self._send_rooms(self.main, as_difference=chosen.as_difference)

    def _send_rooms(self, connection: SimulatedConnection, *, as_difference: bool) -> None:
        """Send the device's rooms, unless this connection has sent them."""
        before, rooms = connection.sent_rooms, self._rooms
        if before == rooms:
            return
        if as_difference:
            update = protocol.update(join=sorted(rooms - before), leave=sorted(before - rooms), id=4)
        else:
            update = protocol.update(rooms=sorted(rooms), id=4)
        connection.send(protocol.encode(update), rooms=rooms)

    def _runner(self, action: Action) -> Callable[[], None]:
        def act() -> None:
            self._world.note("{} {} ({:.1f} s)", self.plan.name, action.kind.name, action.seconds)
            getattr(self, f"_{action.kind.name.lower()}")(action.seconds)

        return act

    def _silent(self, seconds: float) -> None:
        self.cut_off_until = max(self.cut_off_until, self._agenda.now + seconds)

    def _leave(self, seconds: float) -> None:
        self.main, self.wants_connection = None, False
        if seconds < float("inf"):

            def come_back() -> None:
                self.wants_connection = True
                self.connect()

            self._agenda.after(seconds, come_back)

    def _logout(self, seconds: float) -> None:
        if self.main is not None and self.main.is_login_read:
            self.main.send(LOGOUT_FRAME)
            self.main.abandon()
            self._leave(seconds)

    def _drop(self, seconds: float) -> None:
        if self.main is not None:
            self.main.close()
            self._leave(seconds)

    def _move(self, seconds: float) -> None:
        if self.main is not None:
            self.main.abandon()
            self.main = None
            self._connect_later(seconds)

    def _twice(self, _seconds: float) -> None:
        if self.main is not None:
            self.main = None
            self.connect()

    def _near(self, seconds: float) -> None:
        self._late_until = self._agenda.now + seconds


def _unix_ms(moment: float | None) -> int | None:
    return None if moment is None else round((UNIX_START_S + moment) * 1000)


def _map(text: str) -> dict[str, str]:
    """Return a text as `meta` or `private` hold it."""
    return {"text": text} if text else {}
