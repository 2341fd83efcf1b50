"""``presence timers add|cancel|list|dead``: operating on a timer."""

import json
from collections.abc import Iterator

import pytest

from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.script_runner import Scripting
from presence.timers.interface import Due, Event
from presence.timers.kinds import DelayQueue
from presence.timers.shared_timer import Leasing
from tests.cli.conftest import Command, Result

pytestmark = pytest.mark.usefixtures("clean_environment")


class Timers:
    """The command on one timer, and the same timer from inside."""

    def __init__(self, url: str, command: Command) -> None:
        self._command = command
        self.scripting = Scripting(url)
        self.queue = DelayQueue(self.scripting, Keys("p").timer("t"), Leasing(attempts_max=1))

    def run(self, action: str, *words: str, kind: str = "queue") -> Result:
        return self._command("timers", action, "--prefix", "p", "--kind", kind, "--name", "t", *words)

    def make_dead(self, *names: str) -> None:
        """Turn events into dead letters."""
        for name in names:
            self.queue.schedule(Event(name, 0, b"pay\x1bload"))
            (due,) = self.due(1)
            self.queue.retry(due, 0)

    def due(self, number: int) -> list[Due]:
        """Return that many events that are due within the millisecond."""
        dues: list[Due] = []
        while len(dues) < number:
            dues += self.queue.due()
        return dues


@pytest.fixture
def timers(redis_server: EmbeddedRedis, command: Command) -> Iterator[Timers]:
    timers = Timers(redis_server.url, command)
    yield timers
    timers.scripting.close()


def test_an_added_event_becomes_due_once_or_is_cancelled(timers: Timers) -> None:
    assert timers.run("add", "e", "--delay", "0", "--payload", "order 7") == (0, "", "")
    (due,) = timers.due(1)
    assert (due.id, due.payload) == ("e", b"order 7")
    timers.run("add", "f", "--delay", "60")
    assert timers.run("add", "f", "--delay", "0") == (
        *(1, "", "presence: f: an event with this id is still pending\n"),
    )
    assert timers.run("cancel", "f", "other") == (1, "", "presence: other: no such event\n")
    assert timers.queue.state().waiting == 0


def test_list_prints_the_state_of_the_timer(timers: Timers) -> None:
    timers.make_dead("d")
    timers.queue.schedule_many([Event("a", 60), Event("b", 90)])
    _, out, _ = timers.run("list", "--json")
    facts = json.loads(out)
    assert (facts["waiting"], facts["leased"], facts["dead"]) == (2, 0, 1)
    assert 59 < facts["next_s"] <= 60
    assert (facts["counts"]["scheduled"], facts["counts"]["dead"]) == (3, 1)
    assert timers.run("list")[1].startswith("pending 2  leased 0  dead 1  next in ")


def test_dead_letters_are_listed_with_payloads_escaped(timers: Timers) -> None:
    timers.make_dead("d")
    _, line, _ = timers.run("dead")
    assert line.split()[2:] == ["1", "attempts", "d", r"pay\u{1b}load"]
    letter = json.loads(timers.run("dead", "--json")[1])
    assert (letter["id"], letter["attempts"], letter["payload"]) == ("d", 1, "pay\x1bload")


def test_dead_letters_are_requeued_or_purged(timers: Timers) -> None:
    timers.make_dead("a", "b")
    assert timers.run("dead", "--requeue")[:2] == (0, "2\n")
    assert sorted(due.id for due in timers.due(2)) == ["a", "b"]
    timers.make_dead("c")
    assert timers.run("dead", "--purge", "--json")[:2] == (0, '{"purged":1}\n')
    assert timers.queue.state().dead == 0


def test_large_dead_letters_are_all_purged(timers: Timers) -> None:
    timers.queue.schedule_many([Event(f"e{n}", 0, bytes(65_000)) for n in range(40)])
    for due in timers.due(40):
        timers.queue.retry(due, 0)
    assert timers.run("dead", "--purge")[:2] == (0, "40\n")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("add", "e", "--delay", "1e9"), "delay_s 1000000000.0 is not between 0 and"),
        (("add", "", "--delay", "1"), "an id has 1 to 512 bytes"),
        (("add", "\udcff", "--delay", "1"), "an id that is no UTF-8"),
    ],
)
def test_invalid_arguments_are_refused(timers: Timers, words: tuple[str, ...], complaint: str) -> None:
    status, _, message = timers.run(*words)
    assert status == 2
    assert complaint in message


def test_a_timer_of_another_kind_or_slot_size_is_refused(timers: Timers) -> None:
    assert timers.run("add", "e", "--delay", "60", "--slots", "10", kind="ring").status == 0
    status, output, message = timers.run("list", "--slots", "12", kind="ring")
    assert (status, output) == (2, "")
    assert message.startswith("presence: this ring has 10 slots of 1000 ms: the settings differ.")
    for words in (("add", "other", "--delay", "0"), ("cancel", "e"), ("list",)):
        status, _, message = timers.run(*words)
        assert (status, "of another kind: ring" in message) == (2, True)
