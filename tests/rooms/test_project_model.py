"""Projectors against a plain model: lost, repeated and late calls, pauses, takeovers, loss of data."""

import random
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presence.rooms.projector import RoomProjector
from tests.rooms.sources import Deployment
from tests.simulation.guards import GUARDS, ROOM_GUARDS

USERS: Final = ("ann", "bob", "cy", "dora")
ROOMS: Final = ("hall", "lobby", "market", "yard")  # with two shards two in each, with three in all
PROJECTORS: Final = 2
POLL_S: Final = 0.15  # longer than a projector waits
REST_S: Final = 30.0
STATUSES: Final = ("online", "online", "away", "invisible", "offline")
FATES: Final = ("", "", "", "", "", "", "", "", "lost", "late", "twice", "unanswered", "refused", "pause")

_users = st.tuples(
    st.just("show"),
    st.sampled_from(USERS),
    st.sampled_from(STATUSES),
    st.lists(st.sampled_from(ROOMS), max_size=3),
)
_run = st.tuples(
    st.just("run"), st.integers(0, PROJECTORS - 1), st.lists(st.sampled_from(FATES), max_size=12), st.just(0)
)
_plain = st.one_of(
    _users,
    _users,
    _run,
    _run,
    st.tuples(st.just("pass"), st.sampled_from((0.2, 2.0, 2.0, 6.0)), st.just(0), st.just(0)),
    st.tuples(st.just("late"), st.integers(0, 9), st.just(0), st.just(0)),
    st.tuples(st.just("replace"), st.integers(0, PROJECTORS - 1), st.just(0), st.just(0)),
)
_losses = st.one_of(
    st.tuples(st.just("keep"), st.integers(0, 2), st.just(0), st.just(0)),
    st.tuples(st.just("lose"), st.integers(0, 2), st.booleans(), st.just(0)),
)
Step = tuple[str, Any, Any, Any]


class History:
    """What happens to a deployment, step by step, and what must be true after each."""

    def __init__(self, shards: int) -> None:
        self.deployment = Deployment(shards)
        self.projectors: list[RoomProjector] = [self.deployment.projector() for _ in range(PROJECTORS)]
        self._all = list(self.projectors)
        self._running: list[RoomProjector] = []
        self._kept: dict[int, Any] = {}
        self._next: list[Step] = []
        self.events: dict[str, list[tuple[str, str]]] = {}  # by user: joined and left, as it happened

    def carry_out(self, steps: list[Step]) -> None:
        self._next = list(steps)
        self._run(0, [], 0)
        while self._next:
            self._step(self._next.pop(0))

    def _step(self, step: Step) -> None:
        name, *values = step
        getattr(self, f"_{name}")(*values)
        self.deployment.members()

    def _show(self, uid: str, status: str, rooms: list[str]) -> None:
        before = {*self.deployment.shown.get(uid, ("", ()))[1]}
        self.deployment.show(uid, status, rooms)
        after = {*self.deployment.shown.get(uid, ("", ()))[1]}
        told = self.events.setdefault(uid, [])
        told += [("left", room) for room in sorted(before - after)]
        told += [("joined", room) for room in sorted(after - before)]

    def _run(self, which: int, fates: list[str], _: Any) -> None:
        def meanwhile() -> None:
            for _ in range(min(4, len(self._next))):
                if self._next:
                    self._step(self._next.pop(0))

        wire, projector = self.deployment.wire, self.projectors[which]
        self.deployment.now += POLL_S
        if projector in self._running:  # it pauses: others go on
            return
        self._running.append(projector)
        wire.fates, wire.meanwhile = list(fates), meanwhile
        projector.run_once()
        wire.fates, wire.meanwhile = [], None
        self._running.remove(projector)

    def _pass(self, seconds: float, *_: Any) -> None:
        self.deployment.now += seconds

    def _late(self, place: int, *_: Any) -> None:
        self.deployment.wire.deliver_late(place)

    def _replace(self, which: int, *_: Any) -> None:
        self.projectors[which] = self.deployment.projector()
        self._all.append(self.projectors[which])

    def _keep(self, shard: int, *_: Any) -> None:
        self._kept[shard] = self.deployment.keep(shard)

    def _lose(self, shard: int, whole: bool, _: Any) -> None:
        if shard < self.deployment.keys.shards:
            self.deployment.lose(shard, *([self._kept[shard]] if not whole and shard in self._kept else []))

    def _trim(self, shard: int, *_: Any) -> None:
        if shard < self.deployment.keys.shards:
            self.deployment.trim(shard)

    def rest(self) -> None:
        """Let one projector run until everything must be right."""
        deployment, projector = self.deployment, self.projectors[0]
        until = deployment.now + REST_S
        while deployment.now < until:
            deployment.now += max(0.5, min(2.0, projector.run_once()))
            deployment.members()

    def count(self, name: str) -> int:
        return sum(getattr(projector.counters, name) for projector in self._all)


@settings(max_examples=settings().max_examples, deadline=None)
@given(st.integers(1, 3), st.lists(_plain, min_size=10, max_size=60))
def test_each_event_changes_rooms_once_whatever_becomes_of_calls(shards: int, steps: list[Step]) -> None:
    history = History(shards)
    history.carry_out(steps)
    history.rest()
    assert history.deployment.members() == history.deployment.expected()
    if not history.count("rebuilds"):
        assert not history.count("differences")
        for uid, told in history.events.items():
            assert history.deployment.told_of(uid) == sorted(told, key=lambda each: each[1])


@settings(max_examples=settings().max_examples, deadline=None)
@given(st.integers(1, 3), st.lists(st.one_of(_plain, _plain, _losses), min_size=10, max_size=60))
def test_rooms_are_right_again_after_any_shard_has_lost_data(shards: int, steps: list[Step]) -> None:
    history = History(shards)
    history.carry_out(steps)
    history.rest()
    assert history.deployment.members() == history.deployment.expected()


# Guards that are switched off, and a history that finds each: its seed, and whether shards lose data in it.
PLANTED: Final = {
    "rooms-occupied-goes": (1, True),
    "rooms-read-again": (2, False),
    "rooms-gap": (16, True),
    "rooms-behind": (38, True),
    "rooms-epoch": (7, True),
}
LOSS_SHARE: Final = 0.25  # of steps
STEPS: Final = ("show", "show", "run", "run", "pass", "late", "replace")


def drawn_steps(random: random.Random, *, loses: bool) -> list[Step]:
    """Return steps as above, but the same for a seed in each release of Hypothesis."""
    return [_drawn_step(random, loses=loses) for _ in range(random.randint(10, 60))]


def _drawn_step(random: random.Random, *, loses: bool) -> Step:
    if loses and random.random() < LOSS_SHARE:
        shard, what = random.randrange(3), random.choice(("keep", "lose", "trim"))
        return (what, shard, what == "lose" and random.random() < 0.5, 0)
    match random.choice(STEPS):
        case "show":
            rooms = random.sample(ROOMS, random.randint(0, 3))
            return ("show", random.choice(USERS), random.choice(STATUSES), rooms)
        case "run":
            fates = [random.choice(FATES) for _ in range(random.randint(0, 12))]
            return ("run", random.randrange(PROJECTORS), fates, 0)
        case "pass":
            return ("pass", random.choice((0.2, 2.0, 6.0)), 0, 0)
        case "late":
            return ("late", random.randrange(10), 0, 0)
        case _:
            return ("replace", random.randrange(PROJECTORS), 0, 0)


def play(seed: int, *, loses: bool) -> None:
    """Carry out a history that is drawn from a seed; no difference may be left to the slow comparison."""
    random.seed(seed)  # what projectors draw
    draw = random.Random(seed)
    history = History(draw.randint(1, 3))
    history.carry_out(drawn_steps(draw, loses=loses))
    history.rest()
    assert history.deployment.members() == history.deployment.expected()
    assert not history.count("differences")


@pytest.mark.parametrize("name", PLANTED)
def test_a_guard_that_is_off_is_noticed(name: str) -> None:
    seed, loses = PLANTED[name]
    (guard,) = (each for each in (*GUARDS, *ROOM_GUARDS) if each.name == name)
    play(seed, loses=loses)
    with guard.off(), pytest.raises((AssertionError, KeyError, ValueError)):
        play(seed, loses=loses)
