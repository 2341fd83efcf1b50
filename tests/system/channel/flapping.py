"""``flapping``: clients who drop their connection and return again and again, and then stay away once.

While a client returns within its grace nothing is told. An absence for longer than that is one offline event,
neither before the grace was over nor later than promised, and one online event for the return. Of a client
who flapped the grace is longer than it was set, and the event says how long it was.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from loadtest.outcome import BrokenPromises, print_progress, spread_ms
from loadtest.scenario_report import ScenarioReport, loaded_server
from presence.core.flap_damping import MAX_GRACE_S
from presence.loadtest.client_loop import ClientLoop, LoopClient
from presence.protocol import KEEPALIVE, Code
from presence.store.keys import Keys
from tests.system.channel.entries import ChannelEntry, by_user, read_entries

LOGIN_S = 20.0
SETTLE_S = 3.0
MIN_AWAY_S = 0.25  # shorter, and the return is there before the loss was read: that is a take-over
AWAY_SHARE = 0.4  # of the grace, or of the time between two drops: so long a short absence takes at most
ROUNDING_MS = 2.0  # the server's milliseconds, and those of the wall clock beside the monotonic one
SLACK_MS = 1000.0  # for the way into the stream


@dataclass(frozen=True)
class FlappingPlan:
    """The size of the run, and the server's settings."""

    clients: int = 100  # they drop and return
    calm: int = 20  # they are only away once
    drops: int = 20  # of each client in `minute_s`; more than `MAX_RETURNS_PER_MINUTE`
    minute_s: float = 60.0  # 60 at most
    grace_s: float = 5.0
    idle_s: float = 30.0
    tick_s: float = 1.0

    @property
    def long_away_s(self) -> float:
        """How long each client is away once: longer than any grace."""
        return min(MAX_GRACE_S, self.idle_s) + self.tick_s + SETTLE_S


class FlappingClient(NamedTuple):
    """What a client did."""

    disconnected_ms: float  # when the long absence began, right after a packet; Unix ms
    flapped: bool  # whether it returned so often that its grace must be extended


class Flapper(LoopClient):
    """A client that counts its short absences, and records when the long one began."""

    def __init__(self, loop: ClientLoop, uid: str) -> None:
        super().__init__(loop, uid)
        self.drops, self.disconnected_ms = 0, 0.0

    def drop_briefly(self, seconds: float) -> None:
        """Drop the connection, and reconnect some seconds later."""
        if self.is_logged_in:
            self.drops += 1
            self.close(reset=random.random() < 0.5)
            self.loop.call_at(time.monotonic() + seconds, self.connect)

    def drop_for_long(self, seconds: float) -> None:
        """Send a last keepalive, drop the connection, and reconnect after some seconds."""
        self.send(KEEPALIVE)
        self.disconnected_ms = self.loop.unix_ms(time.monotonic())
        self.close()
        self.loop.call_at(time.monotonic() + seconds, self.connect)


def flapping(plan: FlappingPlan, seed: int) -> ScenarioReport:
    flags = (
        *("--disconnect-grace", f"{plan.grace_s:g}"),
        *("--idle-timeout", f"{plan.idle_s:g}", "--tick", f"{plan.tick_s:g}"),
    )
    with loaded_server(*flags, beat_s=0.4 * plan.idle_s) as stage:
        flapping_clients = [Flapper(stage.loop, f"wild-{number}") for number in range(plan.clients)]
        calm_clients = [Flapper(stage.loop, f"calm-{number}") for number in range(plan.calm)]
        _play(plan, random.Random(seed), stage.loop, flapping_clients, calm_clients)
        entries = by_user(read_entries(stage.data.events(Keys())))
    by_uid = {
        each.uid: FlappingClient(each.disconnected_ms, each in flapping_clients)
        for each in (*flapping_clients, *calm_clients)
    }
    verdict, graces = judge(by_uid, entries, plan)
    drops = sum(each.drops for each in flapping_clients)
    counts = [
        sum(len(entries.get(each.uid, ())) for each in clients) - len(clients)
        for clients in (flapping_clients, calm_clients)
    ]
    report = ScenarioReport(
        f"flapping: {plan.clients} clients, {plan.drops} drops each in {plan.minute_s:g} s, "
        f"grace {plan.grace_s:g} s"
    )
    report.rows = {
        "dropped, and back within the grace": f"{drops:,} times",
        "events of these, but for the first login": f"{counts[0]:,}, due {2 * len(flapping_clients):,}",
        "events of calm clients' long absence": f"{counts[1]:,}, due {2 * len(calm_clients):,}",
        "longer graces, as the events name them": f"{len(graces)}: {spread_ms(ms / 1000 for ms in graces)}",
    }
    report.metrics = {"drops": drops, "graces_ms": graces}
    report.broken = verdict.broken + stage.server.failures()
    if drops < plan.clients * plan.drops:
        report.broken.append(f"only {drops:,} drops took place")
    return report


def _play(
    plan: FlappingPlan,
    rng: random.Random,
    loop: ClientLoop,
    flapping_clients: list[Flapper],
    calm_clients: list[Flapper],
) -> None:
    """Log all in; some drop and return for a minute; in the end each is away once for long."""
    every_client = [*flapping_clients, *calm_clients]
    loop.log_in(every_client, LOGIN_S)
    started = time.monotonic()
    every_s = plan.minute_s / plan.drops
    for client in flapping_clients:
        first = started + rng.uniform(0.0, 0.3 * every_s)
        for number in range(plan.drops):
            seconds = rng.uniform(MIN_AWAY_S, max(MIN_AWAY_S, AWAY_SHARE * min(plan.grace_s, every_s)))
            loop.call_at(first + number * every_s, partial(client.drop_briefly, seconds))
    loop.run(plan.minute_s)
    loop.run(LOGIN_S, lambda: loop.count_logged_in() == len(every_client))
    print_progress("flapping: all stay away once")
    for client in every_client:
        client.drop_for_long(plan.long_away_s)
    loop.run(plan.long_away_s + SETTLE_S)


def judge(
    clients: Mapping[str, FlappingClient], entries: Mapping[str, Sequence[ChannelEntry]], plan: FlappingPlan
) -> tuple[BrokenPromises, list[float]]:
    """Compare the events with what the clients did.

    Returns:
        The verdict, and the extended graces as their events name them, ms.
    """
    verdict, graces = BrokenPromises(), []
    for uid, client in clients.items():
        events = entries.get(uid, ())
        story = f"{uid}: {client}, told {[(entry.at_ms, *entry.fields.values()) for entry in events]}"
        if any(entry.at_ms < client.disconnected_ms for entry in events[1:]):
            verdict.note("event while the client returned within its grace", story)
            continue
        if [entry.fields["type"] for entry in events] != ["online", "offline", "online"]:
            verdict.note("not one offline and one online event of the long absence", story)
            continue
        online, offline, again = events
        if offline.code != Code.CLOSED or again.code != Code.LOGIN:
            verdict.note("event for another reason", story)
        if offline.fields.get("since_id") != online.state["id"]:
            verdict.note("since_id is not that of the online event", story)
        named = float(offline.fields.get("grace_ms") or 0)
        grace = named or 1000 * plan.grace_s
        if bool(named) is not client.flapped:
            verdict.note("a longer grace for the calm, or none for who flapped", story)
        if named and not 1000 * plan.grace_s < grace <= 1000 * MAX_GRACE_S:
            verdict.note("a grace out of its bounds", story)
        due = client.disconnected_ms + min(grace, 1000 * plan.idle_s)
        if offline.at_ms < due - ROUNDING_MS:
            verdict.note("offline within the grace", story)
        if offline.at_ms > due + 1000 * plan.tick_s + SLACK_MS:
            verdict.note("offline later than promised", story)
        graces += [named] if named else []
    return verdict, graces
