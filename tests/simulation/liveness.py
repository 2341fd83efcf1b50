"""Whether Redis has to know that a session lives, and every excuse; see the rule `false` in `judge`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from loadtest.checker.endings import NO_CLAIM, Claim, is_false
from tests.simulation.truth import LONG_AGO, Key, Life

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.world import World

RECOVERY_S: Final = 2.0  # back-off of a second, a probe, an opening and its batches
UNDER_WAY_S: Final = 5.0  # a login applied later after its sending may be taken for younger than it is
BLINK_S: Final = 1.0  # after shorter absences of Redis ends do not wait for logins elsewhere
LOGIN_LAG_S: Final = 0.3  # gathering, and a call or two
EPSILON_S: Final = 0.005  # ages travel in whole milliseconds
ROLLBACK_S: Final = 2.5 + RECOVERY_S  # until every node has probed


class Liveness:
    """What has happened that excuses somebody.

    Attributes:
        rolled_back_at: true time at which Redis last went back in the same history.
        made_good: changes that gap entries told of, by the process that skipped them.
        made_good_at: when the last of them was written.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.rolled_back_at = LONG_AGO
        self.made_good: dict[Host, int] = {}
        self.made_good_at: dict[Host, float] = {}
        self._outdated_at: dict[Key, float] = {}

    def applied(self, key: Key) -> None:
        """Redis has applied a login, or a registration, of a device just now."""
        if self._world.redis.under_way_s > UNDER_WAY_S:
            self._outdated_at[key] = self._world.agenda.now

    def is_outdated(self, life: Life) -> bool:
        """Whether, since its login, Redis has applied another of its device that was under way for long."""
        return self._outdated_at.get(life.key, LONG_AGO) >= life.arrived

    def has_to_be_known(self, life: Life, decided_at: float, teller: Host) -> bool:
        """Whether a session lived at a moment, lives now, and Redis has to know by the word of `teller`."""
        now = self._world.agenda.now
        claim = self._claim(life, decided_at, teller)
        return is_false(claim, decided_at, now) and life.is_held() and not self._is_excused(life, now)

    def _claim(self, life: Life, decided_at: float, teller: Host) -> Claim:
        """Return what speaks for a session by the word of `teller`."""
        now = self._world.agenda.now
        if not self._is_seen(life, teller) or not life.is_beating(now) or self.is_outdated(life):
            return NO_CLAIM
        # Redis dates both by the ages that their nodes tell, each by its own clock.
        clocks = abs(teller.clock.rate - 1.0) + abs(life.host.clock.rate - 1.0)
        doubt_s = EPSILON_S + (now - decided_at) * clocks
        return Claim(life.handled + doubt_s, life.handled + LOGIN_LAG_S, math.inf)

    def _is_seen(self, life: Life, teller: Host) -> bool:
        """Whether a process has seen that of a session at work in its shard; else it waits for nobody."""
        if life.host is teller:
            return True
        settling = teller.node.relay.writers[self._world.keys.shard(life.key[0])].settling
        return not life.host.ids.isdisjoint({*settling.others, *settling._steady, *settling.known})

    def _is_excused(self, life: Life, now: float) -> bool:
        redis, machine = self._world.redis, life.host.machine
        if now - self.rolled_back_at < ROLLBACK_S or redis.is_just_back(RECOVERY_S, BLINK_S):
            return True
        dropped = life.host.node.outbox.statistics().dropped_total
        if (
            dropped > self.made_good.get(life.host, 0)
            or now - self.made_good_at.get(life.host, LONG_AGO) < RECOVERY_S
        ):
            return True
        if machine.stopped_since is not None or now - machine.resumed_at < RECOVERY_S:
            return True
        return life.host.wires["relay"].is_in_trouble(now - RECOVERY_S)
