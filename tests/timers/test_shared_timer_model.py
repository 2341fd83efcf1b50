"""Shared timers against a plain model: they agree after any operations in any order."""

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest

from presence.store.redis_client import Redis
from presence.store.script_runner import Scripting
from presence.timers.interface import Due, Event
from presence.timers.shared_timer import Leasing
from tests.timers.shared_timers import BASE, KINDS, LAP_S, a_timer, let_pass, places

ATTEMPTS_MAX = 2
NAMES = "abc"
WALKS, STEPS = 6, 80


@dataclass
class Known:
    """What the model knows of an event; `ready`: the lap from which it is due."""

    payload: bytes
    ready: int
    place: str = "waiting"
    attempts: int = 0
    spared: int = 0
    last: Due | None = None

    @property
    def is_spent(self) -> bool:
        return self.attempts - self.spared >= ATTEMPTS_MAX


@pytest.mark.parametrize("kind", KINDS)
def test_a_timer_does_what_its_model_does(scripting: Scripting, client: Redis, kind: str) -> None:
    for seed in range(WALKS):
        client.flushall()
        pair = TimerAndModel(scripting, client, kind, seed)
        steps = [pair.due, pair.let_a_lap_pass, pair.schedule, pair.done, pair.retry, pair.cancel]
        steps += [pair.reschedule, pair.extend, pair.give_back, pair.requeue_or_purge]
        weights = [8, 6, 5, 1, 4, 2, 1, 3, 2, 2]
        for step in pair.chance.choices(steps, weights, k=STEPS):
            step()
            pair.check()


class TimerAndModel:
    """Each step does one thing to both.

    Times are in laps, which pass by `let_a_lap_pass` alone: a walk takes less than a quarter of one.
    """

    def __init__(self, scripting: Scripting, client: Redis, kind: str, seed: int) -> None:
        self.client = client
        self.chance = random.Random(seed)
        leasing = Leasing(lease_s=1.5 * LAP_S, attempts_max=ATTEMPTS_MAX)  # over after the second lap
        self.timer = a_timer(scripting, kind, leasing)
        self.lap = 0
        self.model: dict[str, Known] = {}
        self.past: list[Due] = []  # void deliveries

    def schedule(self) -> None:
        name, (laps, delay_s), payload = self._name(), self._delay(), self.chance.randbytes(2)
        is_new = self.timer.schedule(Event(name, delay_s, payload))
        assert is_new == (name not in self.model)
        if is_new:
            self.model[name] = Known(payload, self.lap + laps)

    def cancel(self) -> None:
        name = self._name()
        assert self.timer.cancel(name) == (name in self.model)
        self._forget(name)

    def reschedule(self) -> None:
        name, (laps, delay_s) = self._name(), self._delay()
        known = self.model.get(name)
        is_waiting = known is not None and known.place == "waiting"
        assert self.timer.reschedule(name, delay_s) == is_waiting
        if known and is_waiting:
            known.ready = self.lap + laps

    def let_a_lap_pass(self) -> None:
        let_pass(self.client)
        self.lap += 1
        # Due times were moved with all other data: a worker that holds an event would know the new ones.
        for known in self.model.values():
            known.last = known.last and _earlier(known.last)
        self.past = [_earlier(due) for due in self.past[-20:]]

    def due(self) -> None:
        limit = self.chance.choice([1, 2, 4])
        ready = {
            name
            for name, known in self.model.items()
            if known.place in {"waiting", "leased"} and known.ready <= self.lap
        }
        spent = {name for name in ready if self.model[name].is_spent}
        dues = self.timer.due(limit)
        died = {letter.id for letter in self.timer.dead() if self.model[letter.id].place != "dead"}
        assert died <= spent
        assert {due.id for due in dues} <= ready - spent
        assert len(dues) <= limit
        # Dead letters took room in the slice; an empty answer means that nothing is due.
        assert len(dues) + len(died) >= min(limit, len(ready))
        assert dues or ready == died
        for name in died:
            self.model[name].place = "dead"
        for due in dues:
            known = self.model[due.id]
            assert due.late_ms >= 0
            assert (due.payload, due.attempt) == (known.payload, known.attempts + 1)
            self._void(known)
            known.place, known.ready, known.attempts, known.last = "leased", self.lap + 2, due.attempt, due

    def done(self) -> None:
        dues, ours = self._some()
        assert self.timer.done(dues) == len(ours)
        for name in ours:
            self._forget(name)

    def extend(self) -> None:
        dues, ours = self._some()
        assert self.timer.extend(dues) == len(ours)
        for name in ours:
            self.model[name].ready = self.lap + 2

    def give_back(self) -> None:
        dues, ours = self._some()
        given = [name for name in ours if self.model[name].ready > self.lap]
        assert self.timer.give_back(dues) == len(given)
        for name in given:
            self.model[name].ready = self.lap
            self.model[name].spared += 1

    def retry(self) -> None:
        dues, ours = self._some()
        for due in dues:
            laps, delay_s = self._delay()
            is_ours = due.id in ours and self.model[due.id].last == due
            assert self.timer.retry(due, delay_s) == is_ours
            if is_ours and self.model[due.id].is_spent:
                self.model[due.id].place = "dead"
            elif is_ours:
                self.model[due.id].ready = self.lap + laps

    def requeue_or_purge(self) -> None:
        names, (laps, delay_s) = self.chance.sample(NAMES, 2), self._delay()
        dead = [name for name in names if name in self.model and self.model[name].place == "dead"]
        if self.chance.random() < 0.5:
            assert self.timer.purge(names) == len(dead)
            for name in dead:
                self._forget(name)
        else:
            assert self.timer.requeue(names, delay_s) == len(dead)
            for name in dead:
                self._void(self.model[name])
                self.model[name] = Known(self.model[name].payload, self.lap + laps)

    def check(self) -> None:
        """Check that each event is in its place, and in no other."""
        assert places(self.client) == {name: known.place for name, known in self.model.items()}
        state = self.timer.state()
        by_place = [known.place for known in self.model.values()]
        assert (state.waiting, state.leased, state.dead) == tuple(
            by_place.count(place) for place in ("waiting", "leased", "dead")
        )
        assert {letter.id: (letter.payload, letter.attempts) for letter in self.timer.dead()} == {
            name: (known.payload, known.attempts)
            for name, known in self.model.items()
            if known.place == "dead"
        }
        kept: Any = self.client.hkeys(f"{BASE}:work")
        assert sorted(name.decode() for name in kept) == sorted(self.model)

    def _name(self) -> str:
        return self.chance.choice(NAMES)

    def _delay(self) -> tuple[int, float]:
        """Draw a delay: the laps after which it is over, and its seconds, which end within the last one."""
        laps = self.chance.choice([1, 2])
        return laps, (laps - self.chance.uniform(0.3, 0.7)) * LAP_S

    def _some(self) -> tuple[list[Due], set[str]]:
        """Draw current and void deliveries; return them with the ids of those that are still valid."""
        present = [(known.last, known.place) for known in self.model.values() if known.last]
        known = [*dict.fromkeys([*(last for last, _ in present), *self.past[-3:]])]
        dues = self.chance.sample(known, min(len(known), self.chance.choice([1, 2, 4])))
        return dues, {last.id for last, place in present if last in dues and place == "leased"}

    def _void(self, known: Known) -> None:
        if known.last:
            self.past.append(known.last)

    def _forget(self, name: str) -> None:
        if known := self.model.pop(name, None):
            self._void(known)


def _earlier(due: Due) -> Due:
    return replace(due, due_ms=due.due_ms - round(LAP_S * 1000))
