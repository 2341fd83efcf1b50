"""Shared timers against a plain model of them: whatever is asked, in whatever order, they agree."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from presence.embedded import EmbeddedRedis
from presence.store.client import Redis, open_client
from presence.store.scripting import Scripting
from presence.timers.handing import Leasing
from presence.timers.interface import Due, Event
from tests.timers.keeping import BASE, KINDS, LAP_S, a_timer, let_pass, places

ATTEMPTS_MAX = 3
EXAMPLES, STEPS = 25, 40
NAMES = st.sampled_from(["a", "b", "c"])
# Times are told in laps, which pass by `let_pass` alone: an example takes less than a quarter of one.
LAPS = st.integers(1, 2)
WITHIN = st.floats(0.3, 0.7)  # of the last lap


@dataclass
class Known:
    """What the model knows of an event; `ready`: the lap from which it is handed out."""

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
def test_a_timer_does_what_its_model_does(server: EmbeddedRedis, kind: str) -> None:
    scripting, client = Scripting(server.url), open_client(server.url)
    run_state_machine_as_test(
        lambda: AgainstModel(scripting, client, kind),  # type: ignore[arg-type]  # it takes any factory
        settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None),
    )
    scripting.close()
    client.close()


class AgainstModel(RuleBasedStateMachine):
    """Each rule does one thing to both."""

    def __init__(self, scripting: Scripting, client: Redis, kind: str) -> None:
        super().__init__()
        client.flushall()
        self.client = client
        leasing = Leasing(lease_s=1.5 * LAP_S, attempts_max=ATTEMPTS_MAX)  # over after the second lap
        self.timer = a_timer(scripting, kind, leasing)
        self.lap = 0
        self.model: dict[str, Known] = {}
        self.past: list[Due] = []  # that are void

    @rule(name=NAMES, laps=LAPS, within=WITHIN, payload=st.binary(max_size=3))
    def schedule(self, name: str, laps: int, within: float, payload: bytes) -> None:
        is_new = self.timer.schedule(Event(name, (laps - within) * LAP_S, payload))
        assert is_new == (name not in self.model)
        if is_new:
            self.model[name] = Known(payload, self.lap + laps)

    @rule(name=NAMES)
    def cancel(self, name: str) -> None:
        assert self.timer.cancel(name) == (name in self.model)
        self._forget(name)

    @rule(name=NAMES, laps=LAPS, within=WITHIN)
    def reschedule(self, name: str, laps: int, within: float) -> None:
        known = self.model.get(name)
        is_waiting = known is not None and known.place == "waiting"
        assert self.timer.reschedule(name, (laps - within) * LAP_S) == is_waiting
        if known and is_waiting:
            known.ready = self.lap + laps

    def let_laps_pass(self, laps: int) -> None:
        if not laps:
            return
        let_pass(self.client, laps)
        self.lap += laps
        # Due times were moved with all the rest: who holds an event would know them as they are.
        work: Any = self.client.hgetall(f"{BASE}:work")
        for known in self.model.values():
            if known.last:
                known.last = self._moved(known.last, laps)
        self.past = [self._moved(due, laps) for due in self.past]
        assert len(work) == len(self.model)

    @rule(limit=st.integers(1, 4), laps=st.integers(0, 2))
    def due(self, limit: int, laps: int) -> None:
        self.let_laps_pass(laps)
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
        # What died took room in the slice; who gets nothing can be sure that there is nothing.
        assert len(dues) + len(died) >= min(limit, len(ready))
        assert dues or ready == died
        for name in died:
            self._bury(name)
        for due in dues:
            known = self.model[due.id]
            assert due.late_ms >= 0
            assert (due.payload, due.attempt) == (known.payload, known.attempts + 1)
            self._void(known)
            known.place, known.ready, known.attempts, known.last = "leased", self.lap + 2, due.attempt, due

    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        dues, present = self._some(data)
        assert self.timer.done(dues) == len(present)
        for name in present:
            self._forget(name)

    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        dues, present = self._some(data)
        assert self.timer.extend(dues) == len(present)
        for name in present:
            self.model[name].ready = self.lap + 2

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        dues, present = self._some(data)
        given = [name for name in present if self.model[name].ready > self.lap]
        assert self.timer.give_back(dues) == len(given)
        for name in given:
            self.model[name].ready = self.lap
            self.model[name].spared += 1

    @rule(data=st.data(), laps=LAPS, within=WITHIN)
    def retry(self, data: st.DataObject, laps: int, within: float) -> None:
        dues, present = self._some(data)
        for due in dues:
            is_its = due.id in present and self.model[due.id].last == due
            assert self.timer.retry(due, (laps - within) * LAP_S) == is_its
            if is_its and self.model[due.id].is_spent:
                self._bury(due.id)
                present.remove(due.id)
            elif is_its:
                self.model[due.id].ready = self.lap + laps

    @rule(names=st.sets(NAMES), laps=LAPS, within=WITHIN)
    def requeue(self, names: set[str], laps: int, within: float) -> None:
        dead = [name for name in names if name in self.model and self.model[name].place == "dead"]
        assert self.timer.requeue(names, (laps - within) * LAP_S) == len(dead)
        for name in dead:
            self._void(self.model[name])
            self.model[name] = Known(self.model[name].payload, self.lap + laps)

    @rule(names=st.sets(NAMES))
    def purge(self, names: set[str]) -> None:
        dead = [name for name in names if name in self.model and self.model[name].place == "dead"]
        assert self.timer.purge(names) == len(dead)
        for name in dead:
            self._forget(name)

    @invariant()
    def each_is_in_its_place_and_in_no_other(self) -> None:
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
        if not self.model:
            left: Any = self.client.keys(f"{BASE}:*")
            assert set(left) <= {f"{BASE}:counts".encode(), f"{BASE}:ring".encode()}

    def _some(self, data: st.DataObject) -> tuple[list[Due], list[str]]:
        """Draw handings out, of now and of the past; and the ids of those that are still somebody's."""
        present = {known.last: name for name, known in self.model.items() if known.last}
        known = sorted({*present, *self.past}, key=lambda due: (due.id, due.due_ms, due.attempt))
        dues = data.draw(st.lists(st.sampled_from(known), min_size=1, unique=True)) if known else []
        return dues, [present[due] for due in dues if due in present and self.model[due.id].place == "leased"]

    def _void(self, known: Known) -> None:
        if known.last:
            self.past.append(known.last)

    def _bury(self, name: str) -> None:
        self.model[name].place = "dead"

    def _forget(self, name: str) -> None:
        known = self.model.pop(name, None)
        if known:
            self._void(known)

    def _moved(self, due: Due, laps: int) -> Due:
        ms = round(laps * LAP_S * 1000)
        return Due(due.id, due.payload, due.due_ms - ms, due.late_ms, due.attempt)
