"""Clients in a thread of their own, who come, go, move and fall silent, and what each truly did."""

import random
import time
from collections.abc import Sequence

from loadtest.chaos.acts import Acts, Ended, Gone
from loadtest.chaos.group import Address, Group
from loadtest.crowd import SwarmThread

EACH_S = 25.0  # mean time between two deeds of a client
NEAR_S = 0.04  # before the time-out: so late beat those who beat late


class Crowd(SwarmThread):
    """All clients.

    Args:
        addresses: of nodes, with and without proxies.
        count: how many clients there are.
        near: how many of them beat shortly before their time-out; always without a proxy.
        idle_timeout, tick, grace: the servers', seconds.
        tell: see `Ended`; called in their thread.
        gone: see `Acts`.

    Attributes:
        users: what they did, by uid.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        count: int,
        near: int,
        *,
        idle_timeout: float,
        tick: float,
        grace: float,
        tell: Ended,
        gone: Gone,
    ) -> None:
        self._acts = Acts(idle_timeout + tick, grace, tell, gone)
        direct = [each for each in addresses if not each.is_proxied]
        self._groups = [
            Group("user", count - near, addresses, 0.4 * idle_timeout, self._acts),
            Group("near", near, direct, idle_timeout - NEAR_S, self._acts),
        ]
        self.users = {user.uid: user for group in self._groups for user in group.users}
        self._pick = [group for group in self._groups for _ in group.users]
        self._act_s = EACH_S / count
        super().__init__([group.swarm for group in self._groups], self._do_due)

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        self._acts.close()

    def bring_all(self, per_second: float) -> None:
        """Let all log in, evenly at that rate."""

        def bring() -> None:
            for group in self._groups:
                group.swarm.bring(range(len(group.users)), time.monotonic(), per_second)

        self.ask(bring)

    def act(self, *, on: bool) -> None:
        """Let them begin, or cease, to do things by themselves."""

        def begin() -> None:
            if on and not self._acts.is_acting:
                self._acts.after(self._act_s, self._act)
            self._acts.is_acting = on

        self.ask(begin)

    def live(self) -> dict[str, str]:
        """Return the sessions of those who are there and mean to stay, by uid."""
        return self.ask(lambda: {uid: name for group in self._groups for uid, name in group.live().items()})

    @property
    def deeds(self) -> dict[str, int]:
        """What they did, how often."""
        return dict(self._acts.deeds)

    @property
    def beats(self) -> int:
        """How many were sent."""
        return sum(group.swarm.counts.beats for group in self._groups)

    @property
    def logins(self) -> int:
        """How many were granted."""
        return sum(group.swarm.counts.logins for group in self._groups)

    # In their thread

    def _act(self) -> None:
        if self._acts.is_acting:
            random.choice(self._pick).act()
            self._acts.after(self._act_s, self._act)

    def _do_due(self) -> float:
        self._acts.run_due(time.monotonic())
        return self._acts.due
