"""A seed's plan."""

from dataclasses import replace
from random import Random
from typing import Final

from presence.cluster.lease_renewal import RENEWALS_PER_LEASE
from presence.config.settings import Settings
from presence.protocol.constants import Status
from tests.simulation.plan import (
    ROOM_FAULTS,
    Action,
    ChosenRooms,
    DeviceAction,
    DevicePlan,
    FaultKind,
    PlannedBan,
    ShownStatus,
    SimulatedFault,
    SimulationPlan,
)

FOREVER: Final = float("inf")
QUIET_SLACK_S: Final = 8.0
SEEDS_PER_CROWD: Final = 100  # one of so many seeds has thousands of users
SEEDS_PER_BANS: Final = 5  # in one of so many seeds an operator bans users
SEEDS_PER_FENCE_SET_ANEW: Final = 20  # in one of so many Redis loses a fence, and another observer sets it
COMBINED_SHARE: Final = 0.25  # of seeds: faults that only together try a guard
STATUS_SHARE: Final = 0.5  # of seeds: devices that show how they are
ROOMS_SHARE: Final = 0.5  # of seeds: users in rooms, which projectors keep
MAX_ROOMS: Final = 16  # of a device
NO_DURATION: Final = {FaultKind.FLUSH, FaultKind.JOIN, FaultKind.REBUILD}
NODE_FAULTS: Final = [kind for kind in FaultKind if kind not in ROOM_FAULTS]  # and of Redis


def draw_plan(seed: int) -> SimulationPlan:
    random = Random(seed)
    crowd = seed % SEEDS_PER_CROWD == SEEDS_PER_CROWD - 1
    settings, max_changes = _settings(random, crowd=crowd)
    settings = replace(settings, device_events=seed % 2 == 1)
    heal_at = random.uniform(50.0, 80.0) if crowd else random.uniform(50.0, 130.0)
    nodes = random.randint(2, 4 if crowd else 5)
    rates = tuple(random.choice((1.0, 1.0, random.uniform(0.97, 1.03))) for _ in range(nodes))
    users = random.randint(1000, 3000) if crowd else random.randint(5, 50)
    devices = tuple(
        each for user in range(users) for each in _devices(random, f"u{user}", settings, heal_at, crowd)
    )
    faults = _faults(random, nodes, settings, heal_at)
    plan = SimulationPlan(
        seed, settings, nodes, rates, devices, faults, heal_at, heal_at, max_changes=max_changes
    )
    # Drawn apart: what a seed stands for otherwise does not depend on it.
    random = Random(f"shows {seed}")
    plan = _with_statuses(random, plan) if random.random() < STATUS_SHARE else plan
    bans = _bans(random, plan) if seed % SEEDS_PER_BANS == 2 else ()
    if seed % SEEDS_PER_FENCE_SET_ANEW == 4:
        plan = replace(plan, faults=_with_a_fence_set_anew(Random(f"fences {seed}"), plan))
    if has_rooms(seed):
        plan = _with_rooms(Random(f"rooms {seed}"), plan, crowd=crowd)
    return replace(plan, bans=bans, end_at=heal_at + _quiet_s(plan) * 1.04)


def has_rooms(seed: int) -> bool:
    """Whether users are in rooms in the plan of a seed."""
    return Random(f"has rooms {seed}").random() < ROOMS_SHARE


def _quiet_s(plan: SimulationPlan) -> float:
    """Return how long everything takes to be as it should: of a longer time-out as much as of T.

    An unbroken lease of contact, a lease and T of silence seen, a heartbeat.
    """
    settings = plan.settings
    wishes = [each.idle_timeout for each in plan.devices]
    wishes += [shown.idle_timeout for each in plan.devices for shown in each.statuses]
    longest_s = max([settings.idle_timeout, *(wish or 0.0 for wish in wishes)])
    return 2.2 * settings.lease + settings.idle_timeout + longest_s + QUIET_SLACK_S


def _bans(random: Random, plan: SimulationPlan) -> tuple[PlannedBan, ...]:
    """Draw bans that are over when everything heals, or last for ever."""
    bans = []
    for at in sorted(random.uniform(2.0, plan.heal_at - 5.0) for _ in range(random.randint(3, 8))):
        whose = random.choice(plan.devices)
        ends_at = random.choice((None, min(at + random.uniform(0.5, 40.0), plan.heal_at)))
        lifted_at = random.choice((None, random.uniform(at, plan.heal_at)))
        bans.append(PlannedBan(at, whose.uid, random.choice((None, whose.device)), ends_at, lifted_at))
    return tuple(bans)


def _with_statuses(random: Random, plan: SimulationPlan) -> SimulationPlan:
    """Return a plan in which some devices set a status, or go away automatically."""
    share, t = random.choice((0.1, 0.5, 1.0)), plan.settings.idle_timeout
    away_after = random.choice((0.0, 0.0, 0.5 * t, 2.0 * t))
    devices = tuple(
        replace(device, statuses=_statuses(random, device.start, plan.heal_at, t))
        if random.random() < share
        else device
        for device in plan.devices
    )
    class_sessions = None
    if plan.seed % 3 == 0:
        class_sessions = "phone=1,web=1:newest"
        names = ("phone", "web", "phone", "tv", "")
        devices = tuple(replace(each, device_class=names[n % 5]) for n, each in enumerate(devices))
    settings = replace(
        plan.settings,
        away_after=away_after,
        max_sessions=random.choice((8, 8, 1, 2)),
        session_policy=random.choice(("oldest", "newest")),
        class_sessions=class_sessions,
    )
    return replace(plan, devices=devices, settings=settings)


def _statuses(random: Random, start: float, heal_at: float, t: float) -> tuple[ShownStatus, ...]:
    times = sorted(random.uniform(start + 1.0, heal_at) for _ in range(random.choice((0, 1, 2, 4))))
    if random.random() < 0.3:
        times.insert(0, 0.0)  # with its first login
    return tuple(_status(random, at, t) for at in times)


def _status(random: Random, at: float, t: float) -> ShownStatus:
    dice, meta = random.random(), random.choice(("", "", "here", 'é"\\'))
    status: Status = "away" if dice < 0.5 else "busy" if dice < 0.6 else "dnd" if dice < 0.7 else "online"
    status = "invisible" if dice > 0.85 else status
    private = f"{at:.0f}" if dice % 0.1 < 0.03 else ""
    # Mostly shorter or longer by a half, now and then as usual.
    wish = t * (0.6 + dice * 1e4 % 1) if at > 0 and dice * 1e3 % 1 < 0.4 else None
    ends_at = (
        at + 3 * t * (dice * 1e5 % 1) if at > 0 and status != "online" and dice * 1e6 % 1 < 0.4 else None
    )
    return ShownStatus(at, status, meta, private, wish, ends_at)


def _with_rooms(random: Random, plan: SimulationPlan, *, crowd: bool) -> SimulationPlan:
    """Return a plan in which most devices are in rooms, with projectors and what befalls these."""
    rooms = [f"r{n}" for n in range(random.choice((1, 3, 10, 40)) * (10 if crowd else 1))]
    share = random.choice((0.3, 0.8, 1.0))
    devices = tuple(
        replace(device, rooms=_chosen_rooms(random, rooms, device.start, plan.heal_at, crowd=crowd))
        if random.random() < share
        else device
        for device in plan.devices
    )
    settings = replace(plan.settings, rooms="open", room_events=random.choice(("all", "all", "occupancy")))
    projectors = random.choice((1, 2, 2, 3))
    added = []
    for _ in range(random.randint(3, 7)):
        kind, at = random.choice(ROOM_FAULTS), random.uniform(8.0, plan.heal_at - 5.0)
        seconds = min(_seconds(random, kind, settings), plan.heal_at - at)
        whose, amount = random.randrange(projectors), _amount(random, kind)
        added.append(SimulatedFault(at, kind, seconds, whose, amount))
    faults = tuple(sorted((*plan.faults, *added), key=lambda fault: fault.at))
    return replace(plan, devices=devices, settings=settings, faults=faults, projectors=projectors)


def _chosen_rooms(
    random: Random, rooms: list[str], start: float, heal_at: float, *, crowd: bool
) -> tuple[ChosenRooms, ...]:
    most = min(random.choice((1, 2, 4, MAX_ROOMS)), len(rooms))
    times = sorted(
        random.uniform(start + 0.1, heal_at) for _ in range(random.choice((0, 1) if crowd else (0, 2, 6, 15)))
    )
    if random.random() < 0.8:
        times.insert(0, 0.0)  # with its first login
    return tuple(
        ChosenRooms(at, frozenset(random.sample(rooms, random.randint(0, most))), random.random() < 0.5)
        for at in times
    )


def _settings(random: Random, *, crowd: bool) -> tuple[Settings, int]:
    """Return the settings, and how many changes may wait for Redis; 0: as many as usual."""
    settings = Settings(redis="redis://simulated", shards=random.choice((1, 1, 2, 3)))
    max_changes = 0 if crowd or random.random() < 0.8 else random.randint(3, 30)
    if random.random() < 0.25:
        return settings, max_changes
    settings = replace(
        settings,
        idle_timeout=random.choice((10.0, 12.0, 15.0)),
        tick=random.choice((0.5, 1.0)),
        lease=random.choice((4.0, 8.0, 10.0)),
        disconnect_grace=random.choice((0.0, 2.0, 3.0)),
    )
    return settings, max_changes


def _devices(random: Random, uid: str, settings: Settings, heal_at: float, crowd: bool) -> list[DevicePlan]:
    count = 1 if crowd else random.choice((1, 1, 1, 2, 2, 3))
    devices = []
    for number in range(count):
        device = "" if number == 0 else f"d{number}"
        wish = None if crowd or random.random() < 0.85 else settings.idle_timeout * random.uniform(0.6, 1.6)
        start = random.uniform(0.5, heal_at * 0.5 if random.random() < 0.3 else 20.0)
        times = sorted(random.uniform(start + 3.0, heal_at) for _ in range(random.choice((0, 1, 2, 3))))
        if crowd:
            times = times[:1]
        actions = tuple(_action(random, at, settings, heal_at) for at in times)
        asks = random.random() < 0.7
        devices.append(DevicePlan(f"{uid}/{device}", uid, device, wish, asks, start, actions))
    return devices


def _action(random: Random, at: float, settings: Settings, heal_at: float) -> Action:
    t, grace = settings.idle_timeout, settings.disconnect_grace
    match random.choice(list(DeviceAction)):
        case DeviceAction.SILENT:
            return Action(at, DeviceAction.SILENT, random.choice((FOREVER, random.uniform(0.2, 2.0) * t)))
        case DeviceAction.LOGOUT:
            return Action(at, DeviceAction.LOGOUT, random.choice((FOREVER, random.uniform(0.1, 20.0))))
        case DeviceAction.DROP:
            away = (FOREVER, random.uniform(0.0, grace), random.uniform(0.0, 2.0 * grace + 5.0))
            return Action(at, DeviceAction.DROP, random.choice(away))
        case DeviceAction.MOVE:
            return Action(at, DeviceAction.MOVE, random.choice((0.0, random.uniform(0.0, t))))
        case DeviceAction.TWICE:
            return Action(at, DeviceAction.TWICE)
    return Action(at, DeviceAction.NEAR, min(random.uniform(2.0, 6.0) * t, heal_at - at))


def _faults(random: Random, nodes: int, settings: Settings, heal_at: float) -> tuple[SimulatedFault, ...]:
    faults: list[SimulatedFault] = []
    count = random.randint(5, 9)
    while len(faults) < count or len({fault.kind for fault in faults}) < 3:
        kind = random.choice(NODE_FAULTS)
        at = random.uniform(8.0, heal_at - 5.0)
        seconds = min(_seconds(random, kind, settings), heal_at - at)
        faults.append(SimulatedFault(at, kind, seconds, random.randrange(nodes), _amount(random, kind)))
    if random.random() < COMBINED_SHARE:
        faults += random.choice(_COMBINATIONS)(random, nodes, settings, heal_at)
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _blind_observers(random: Random, nodes: int, settings: Settings, heal_at: float) -> list[SimulatedFault]:
    """One process renews no lease, and its observers cannot fence it until it counts as dead."""
    dead_s = settings.lease + settings.idle_timeout
    at = random.uniform(12.0, max(13.0, heal_at - 2.0 * dead_s))
    whose = random.randrange(nodes)
    blind_s = dead_s + random.uniform(-1.0, 3.0)
    others = [n for n in range(nodes) if n != whose]
    return [
        SimulatedFault(at, FaultKind.CUT_LEASES, min(1.6 * dead_s, heal_at - at), whose),
        # Refused immediately: time-outs would be a loss of contact, in which no silence is measured.
        *(
            SimulatedFault(at, FaultKind.CUT_SWEEPS, min(blind_s, heal_at - at), n, amount=1.0)
            for n in others
        ),
    ]


def _death_in_an_outage(
    random: Random, nodes: int, settings: Settings, heal_at: float
) -> list[SimulatedFault]:
    dead_s = settings.lease + settings.idle_timeout
    at = random.uniform(12.0, max(13.0, heal_at - 2.0 * dead_s))
    away = SimulatedFault(at, FaultKind.REDIS_AWAY, min(random.uniform(1.0, 1.5) * dead_s, heal_at - at))
    died_at = min(heal_at - 1.0, at + random.uniform(-0.5, 0.5) * settings.lease)
    kind = random.choice((FaultKind.CRASH_SILENT, FaultKind.CRASH_RESET))
    return [away, SimulatedFault(died_at, kind, 2.0 * dead_s, random.randrange(nodes))]


def _loss_around_a_stray(
    random: Random, nodes: int, settings: Settings, heal_at: float
) -> list[SimulatedFault]:
    """The first batches of a generation are in flight while Redis loses it."""
    at = random.uniform(10.0, heal_at - 20.0)
    stray_at = at + random.uniform(0.5, 4.0)
    stray_s = random.uniform(3.0, 9.0)
    again_at = stray_at + random.uniform(1.0, 4.0)
    strays = [SimulatedFault(stray_at, FaultKind.STRAY, stray_s, n) for n in range(nodes)]
    return [SimulatedFault(at, FaultKind.FLUSH, 0.0), *strays, SimulatedFault(again_at, FaultKind.FLUSH, 0.0)]


def _ends_at_a_loss(random: Random, nodes: int, settings: Settings, heal_at: float) -> list[SimulatedFault]:
    """Redis loses everything just when many sessions of a process end."""
    t = settings.idle_timeout
    at = random.uniform(15.0, max(16.0, heal_at - t - 5.0))
    flush_at = at + random.uniform(0.6, 1.0) * t
    return [
        SimulatedFault(at, FaultKind.CLIENTS_CUT, min(1.1 * t, heal_at - at), random.randrange(nodes)),
        SimulatedFault(min(flush_at, heal_at - 1.0), FaultKind.FLUSH, 0.0),
    ]


def _with_a_fence_set_anew(random: Random, plan: SimulationPlan) -> tuple[SimulatedFault, ...]:
    """Return the faults of a plan and, if there is room, what makes two observers set one fence.

    Redis goes back to before the fence of a process that was cut from it, and the process returns under its
    old id. Just before that was to be swept, an observer that could not set the fence before sets it anew.
    """
    lease, idle_timeout = plan.settings.lease, plan.settings.idle_timeout
    dead_s = lease + idle_timeout
    latest = plan.heal_at - dead_s - 8.0
    if plan.nodes < 3 or latest < 12.0:
        return plan.faults
    at = random.uniform(12.0, latest)
    swept_at = at + dead_s - random.uniform(0.0, lease / RENEWALS_PER_LEASE)
    back_at = swept_at - random.uniform(6.0, 9.0)
    snapshot_at = at + random.uniform(0.2, 0.6) * lease
    whose, late = random.sample(range(plan.nodes), 2)
    kind = random.choice((FaultKind.REDIS_BACK, FaultKind.REDIS_BACK_SAME))
    set_anew_at = swept_at - random.uniform(0.2, 2.0)
    added = [
        SimulatedFault(at, FaultKind.CUT_LEASES, 1.5 * dead_s, whose, amount=1.0),
        SimulatedFault(at, FaultKind.CUT_SHARDS, back_at - at, whose, amount=1.0),
        SimulatedFault(at, FaultKind.CUT_SWEEPS, set_anew_at - at, late, amount=1.0),
        SimulatedFault(back_at, kind, 0.3, amount=back_at - snapshot_at),
    ]
    return tuple(sorted((*plan.faults, *added), key=lambda fault: fault.at))


_COMBINATIONS: Final = (_blind_observers, _death_in_an_outage, _loss_around_a_stray, _ends_at_a_loss)


def _seconds(random: Random, kind: FaultKind, settings: Settings) -> float:
    dead_s = settings.lease + settings.idle_timeout
    match kind:
        case FaultKind.STOP:
            t = settings.idle_timeout
            return random.choice((1.0, 5.0, t - 1, t + 1, 2 * t, random.uniform(0.5, 2.5) * dead_s))
        case FaultKind.CRASH_RESET | FaultKind.CRASH_SILENT | FaultKind.DRAIN:
            return random.choice((0.5, random.uniform(0.1, 10.0), random.uniform(0.5, 2.0) * dead_s))
        case FaultKind.REDIS_EMPTY | FaultKind.REDIS_BACK:
            return random.choice((0.3, random.uniform(0.0, 5.0), random.uniform(0.0, 30.0)))
        case FaultKind.STRAY:
            return random.choice((random.uniform(2.1, 10.0), random.uniform(2.1, 2.0 * dead_s)))
        case FaultKind.PROJECTOR_KILL:
            return random.choice((0.2, random.uniform(0.0, 10.0)))
        case FaultKind.PROJECTOR_STOP:
            return random.choice((random.uniform(0.2, 4.0), random.uniform(2.0, 30.0)))
        case kind if kind in NO_DURATION:
            return 0.0
    return random.choice((random.uniform(0.5, 10.0), random.uniform(0.5, 2.5) * dead_s))


def _amount(random: Random, kind: FaultKind) -> float:
    match kind:
        case FaultKind.REDIS_BACK | FaultKind.REDIS_BACK_SAME:
            return random.choice((random.uniform(0.0, 2.0), random.uniform(0.0, 30.0)))
        case FaultKind.REDIS_SLOW:
            return random.choice((0.3, 1.5, 4.0))
    is_share = kind in {
        *(FaultKind.LATE, FaultKind.LOSS),
        *(FaultKind.PROJECTOR_LATE, FaultKind.PROJECTOR_LOSS),
    }
    return random.random() * (0.5 if is_share else 1.0)
