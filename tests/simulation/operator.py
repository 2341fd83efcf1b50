"""An operator who bans users and lifts bans, what processes are told of it, and the rules for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from presence.core.ban_list import Ban
from presence.server.ban_enforcer import REFRESH_INTERVAL_S
from presence.store.ban_table import BanTable, StoredBan
from tests.simulation.excuses import is_calm
from tests.simulation.fake.client import connector
from tests.simulation.fake.values import Hash
from tests.simulation.observed import REDIS_START_S
from tests.simulation.plan import PlannedBan

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.judge import SimulationJudge
    from tests.simulation.world import SimulatedWorld

BAN_S: Final = 1.1  # until a change of the table has taken effect, by the slowest clock
AGAIN_S: Final = 0.5  # between attempts of the operator, or of a process that subscribes
QUIET_S: Final = 6.0  # since the last fault: a back-off, a subscription and a read
LOST_S: Final = REFRESH_INTERVAL_S * 1.04 + BAN_S  # until a process has looked without being told
CLOCKS: Final = 0.04  # how much one clock may differ from another


class Operator:
    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self._bans = BanTable("redis://simulated", world.keys, connector(world.redis))

    def schedule(self) -> None:
        for ban in self._world.plan.bans:
            self._at(ban.at, lambda ban=ban: self._add(ban))  # type: ignore[misc]
            if ban.lifted_at is not None:
                self._at(ban.lifted_at, lambda ban=ban: self._lift(ban))  # type: ignore[misc]

    def table(self) -> tuple[StoredBan, ...]:
        """Return the bans in Redis."""
        found = self._bans.read()
        assert found is not None
        return found.bans

    def tell(self, host: Host) -> None:
        """Have a process read the table, as a message or a new subscription does."""
        if host.redis_connections["bans"].is_cut():
            self._world.agenda.after(AGAIN_S, lambda: self.tell(host))
        else:
            host.machine.post_after(0.0, host.bans.refresh_soon)

    def tell_all(self) -> None:
        for host in self._world.hosts:
            self.tell(host)

    def _at(self, moment: float, act: Callable[[], object]) -> None:
        def attempt() -> None:
            if self._world.redis.outages:
                self._world.agenda.after(AGAIN_S, attempt)
                return
            act()
            known = self._world.redis.data.get(self._world.keys.lease_keys[1].encode(), Hash())
            assert isinstance(known, Hash)
            for node in known:
                self.tell(self._world.host_of_node[node.decode()])
            self._world.judge.bans.changed()

        self._world.agenda.at(moment, attempt)

    def _add(self, ban: PlannedBan) -> None:
        for_s = None if ban.ends_at is None else ban.ends_at - self._world.agenda.now
        if for_s is None or for_s > 0:
            self._world.note("ban {}", ban)
            self._bans.add([ban.uid], ban.device, for_s, "", "")

    def _lift(self, ban: PlannedBan) -> None:
        self._world.note("no ban {}", ban)
        self._bans.lift([ban.uid], ban.device)
        for device in self._world.devices:
            if ban.forbids(device.plan.uid, device.plan.device):
                self._world.agenda.after(2 * BAN_S, device.pardon)


class BanRules:
    """The rule `banned`, and what `converged` says of bans; see `judge`."""

    def __init__(self, world: SimulatedWorld, judge: SimulationJudge) -> None:
        self._world = world
        self._judge = judge

    def changed(self) -> None:
        """The table has changed, perhaps: look whether that has taken effect in time."""
        self._world.agenda.after(BAN_S, self._check_sessions)

    def admitted(self, host: Host, uid: str, device: str) -> None:
        if not self._world.plan.bans:
            return
        now = host.clock.monotonic()
        if any(_forbids(ban, uid, device) and ban.ends_at > now for ban in _known(host)):
            self._judge.add_violation("banned", "{} {} let in by {}, which knows", uid, device, host.name)
        self._check_session(host, uid, device, "let in")

    def told(self, host: Host, uid: str, device: str) -> None:
        """A process told a client that it is banned."""
        now = self._world.agenda.now
        had = any(
            plan.forbids(uid, device)
            and now < min(_end(plan.ends_at), _end(plan.lifted_at)) + BAN_S + CLOCKS * (now - plan.at)
            for plan in self._world.plan.bans
            if plan.at <= now
        )
        is_in_table = any(_forbids(ban, uid, device) for ban in self._world.operator.table())
        if not had and not is_in_table and self._is_informed(BAN_S):
            self._judge.add_violation("banned", "{} {} by {}, without a ban", uid, device, host.name)

    def compare(self, hosts: Iterable[Host]) -> None:
        if not self._world.plan.bans or self._has_lost():
            return
        table = {(ban.uid, ban.device) for ban in self._world.operator.table()}
        for host in hosts:
            now = host.clock.monotonic()
            known = {(ban.uid, ban.device) for ban in _known(host) if ban.ends_at > now}
            if known != table:
                self._judge.add_violation("converged", "{} knows {}, not {}", host.name, known, table)
        self._check_sessions()

    def _check_sessions(self) -> None:
        for host in self._world.hosts:
            for session in list(host.node.engine.registry) if host.machine.is_alive else ():
                self._check_session(host, session.uid, session.device, "has a session")

    def _check_session(self, host: Host, uid: str, device: str, what: str) -> None:
        now_ms = (REDIS_START_S + self._world.agenda.now) * 1000
        for ban in self._world.operator.table():
            age_s = (now_ms - ban.at_ms) / 1000
            lasts = ban.until_ms is None or ban.until_ms - now_ms > CLOCKS * 1000 * age_s
            if lasts and _forbids(ban, uid, device) and age_s >= BAN_S - 0.001 and self._is_informed(age_s):
                self._judge.add_violation("banned", "{} {} {} at {}", uid, device, what, host.name)

    def _is_informed(self, age_s: float) -> bool:
        """Whether processes must know changes of the table that are so old."""
        now = self._world.agenda.now
        since = now - QUIET_S - min(age_s, LOST_S)
        return not self._has_lost() and is_calm(self._world, since, now)

    def _has_lost(self) -> bool:
        return self._world.agenda.now - self._judge.periods.data_lost_at < LOST_S


def _known(host: Host) -> tuple[Ban, ...]:
    return host.node.engine.login_policy.bans.all


def _forbids(ban: Ban | StoredBan, uid: str, device: str) -> bool:
    return ban.uid == uid and ban.device in (None, device)


def _end(moment: float | None) -> float:
    return float("inf") if moment is None else moment
