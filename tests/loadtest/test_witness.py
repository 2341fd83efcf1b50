"""What a swarm's clients do reaches the judge, and what is amiss the report."""

from typing import Any

import pytest

from loadtest.clients import Clients
from loadtest.facts import Sent
from loadtest.judge import Judge, Promise
from loadtest.witness import Witness

T, TICK, GRACE, SLACK = 10.0, 1.0, 5.0, 0.5
SERVER_MS = 5_000_000


class World:
    """A swarm of two, of which client 0 is logged in at 0 s."""

    def __init__(self) -> None:
        self.judge = Judge(Promise(TICK, GRACE, SLACK))
        self.clients = Clients("swarm", 2)
        self.reported: list[tuple[str, str | None]] = []
        self.witness = Witness(
            self.judge,
            self.clients,
            lambda name, seconds: None,
            lambda name, failure: self.reported.append((name, failure)),
        )
        self.log_in(0, 0.0)
        self.event("online", 0.01)

    def log_in(self, number: int, at: float) -> None:
        self.clients.begun[number] = self.clients.done[number] = at
        self.witness.login_sent(number, Sent(at, at))
        told = {"session": f"s-{number}", "idle_timeout": T, "keepalive": 4.0}
        self.witness.entered(number, at + 0.002, told | {"time_ms": SERVER_MS + round(at * 1000)})

    def beat(self, at: float) -> None:
        self.clients.begun[0] = self.clients.done[0] = at
        self.witness.beaten(range(2))

    def event(self, kind: str, at: float, code: int = 201, reason: str = "idle_timeout") -> list[str | None]:
        fields = {"type": kind, "uid": "swarm-0", "code": str(code), "reason": reason, "session": "s-0"}
        fields |= {"at_ms": str(SERVER_MS + round(at * 1000)), "since_id": "1-0"}
        found = self.judge.event("1-0", fields, at + 0.02)
        return sorted({finding.broken for finding in found}, key=str)


@pytest.fixture
def world() -> World:
    return World()


def test_a_client_that_beats_must_not_be_ended(world: World) -> None:
    world.beat(4.0)
    assert world.event("offline", T + 0.5) == ["offline event for a device that beats"]


def test_a_client_that_is_hushed_must_be_ended(world: World) -> None:
    world.beat(4.0)
    world.witness.silent([0])
    (finding,) = world.judge.overdue(4.0 + T + TICK + SLACK + 0.01)
    assert finding.broken == "no offline event in time"


def test_a_connection_that_breaks_is_a_failure(world: World) -> None:
    world.witness.ended(0, 2.0, None)
    assert world.reported == [("connection lost", "closed by the server")]


@pytest.mark.parametrize(
    ("refusal", "failure"),
    [({"code": 404, "reason": "busy"}, None), ({"code": 303, "reason": "auth_failed"}, "auth_failed")],
)
def test_a_refused_login_is_a_failure_unless_the_server_is_busy(
    world: World, refusal: dict[str, Any], failure: str | None
) -> None:
    world.witness.login_sent(1, Sent(3.0, 3.0))
    world.witness.ended(1, 3.1, refusal)
    assert world.reported == [(f"login refused, {refusal['reason']}", failure)]
