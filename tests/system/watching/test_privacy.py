"""What others learn of users who hide, or whom an operator ends: what they learn of a twin who does not.

Each case is played by a user, and its twin by another, before a client that watches both. Then clients at all
workers ask in every way. Answers and pushes are the same, up to the times in them, and of the same size; the
backend is told the truth.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import pytest

from loadtest.servers import LocalRedis, PresenceServer
from presence import protocol
from presence.client import UserState, connect_blocking
from presence.ops import ban, kick
from presence.protocol import Code, Kind
from presence.reader import PresenceReader
from presence.subscriber import Offline, Online, subscribe_sync
from tests.admin.asking import operators
from tests.support.line import Line
from tests.support.preloaded import PreloadedServer
from tests.support.waiting import wait_for

FLAGS = (
    *("--workers", "2", "--device-events", "--disconnect-grace", "0.5"),
    *("--idle-timeout", "300", "--packet-rate", "1000"),
)
SETTLED_S = 0.6  # a change is on record, and pushed
QUESTIONS = 30
LINES = 6  # of each question, so that both workers are asked
UNASKED = {"status": "offline", "since_ms": None, "last_seen_ms": None, "id": None}


@dataclass
class Stage:
    """A running server, and what operators use."""

    server: PresenceServer
    reader: PresenceReader


@dataclass
class User:
    """A user in a case."""

    uid: str
    stage: Stage
    lines: dict[str, Line] = field(default_factory=dict)

    def log_in(self, device: str = "phone", **fields: Any) -> None:
        login = protocol.login(self.uid, device=device, **fields)
        self.lines[device] = Line(self.stage.server.address, login)
        assert self.lines[device].answer.kind == Kind.OK
        settle()

    def update(self, device: str = "phone", **fields: Any) -> None:
        answer = self.lines[device].ask(protocol.update(**fields))
        assert answer.kind == Kind.OK
        assert answer.payload == {name: fields[name] for name in ("scope", "hide") if name in fields}
        settle()

    def log_out(self, device: str = "phone") -> None:
        self.lines[device].ask(protocol.logout())
        self.lines.pop(device).close()
        settle()

    def kick(self, device: str | None = None) -> None:
        url, reader = self.stage.server.redis_url, self.stage.reader
        kick.kick(url, reader, [self.uid], wait_s=5, by="op", device=device)
        self._expect_goodbye(Code.KICKED, device)

    def ban(self, device: str | None = None) -> None:
        url, reader = self.stage.server.redis_url, self.stage.reader
        ban.ban(url, reader, [self.uid], device=device, reason="a secret", by="op", for_s=60, wait_s=5)
        self._expect_goodbye(Code.BANNED, device)

    def _expect_goodbye(self, code: Code, device: str | None) -> None:
        """The user is told the truth."""
        for name in [device] if device else list(self.lines):
            goodbye = self.lines[name].read(5)
            assert (goodbye.kind, goodbye.payload["code"]) == (Kind.GOODBYE, code)
            self.lines.pop(name).close()
        settle()

    def leave(self) -> None:
        for line in self.lines.values():
            line.close()


def settle() -> None:
    time.sleep(SETTLED_S)


Play = Callable[[User], None]


def logged_out(user: User) -> None:
    user.log_in()
    user.log_out()


def kicked(user: User) -> None:
    user.log_in()
    user.kick()


def banned(user: User) -> None:
    user.log_in()
    user.ban()


def device_logged_out(user: User) -> None:
    user.log_in("desk")
    user.log_in()
    user.log_out()


def device_kicked(user: User) -> None:
    user.log_in("desk")
    user.log_in()
    user.kick("phone")


def device_banned(user: User) -> None:
    user.log_in("desk")
    user.log_in()
    user.ban("phone")


def invisible_session(user: User) -> None:
    user.log_in()
    user.update(status="invisible")


def invisible_user(user: User) -> None:
    user.log_in()
    user.update(status="invisible", scope="user")


def invisible_user_at_another_device(user: User) -> None:
    invisible_user(user)
    user.log_in("desk", status="busy", meta={"at": "desk"})
    user.log_out()
    user.update("desk", status="dnd")


def invisible_user_who_returned(user: User) -> None:
    invisible_user(user)
    user.log_out()
    user.log_in("desk")


def invisible_user_banned(user: User) -> None:
    invisible_user(user)
    user.ban()


def invisible_from_the_login(user: User) -> None:
    user.log_in(status="invisible", scope="user")
    user.log_out()
    user.log_in("desk")


def never_came(user: User) -> None:
    pass


def hiding_and_gone(user: User) -> None:
    user.log_in(hide=["last_seen"])
    user.log_out()


def hiding_and_kicked(user: User) -> None:
    user.log_in(hide=["last_seen"])
    user.kick()


def hiding_and_invisible(user: User) -> None:
    user.log_in(hide=["last_seen"])
    user.update(status="invisible", scope="user")


def hiding_and_invisible_elsewhere(user: User) -> None:
    hiding_and_invisible(user)
    user.log_out()
    user.log_in("desk")


CASES: list[tuple[Play, Play, bool]] = [  # a case, its twin, and whether pushes are the same
    (kicked, logged_out, True),
    (banned, logged_out, True),
    (device_kicked, device_logged_out, True),
    (device_banned, device_logged_out, True),
    (invisible_session, logged_out, True),
    (invisible_user, logged_out, True),
    (invisible_user_at_another_device, logged_out, True),
    (invisible_user_who_returned, logged_out, True),
    (invisible_user_banned, logged_out, True),
    (invisible_from_the_login, never_came, True),
    (hiding_and_gone, never_came, False),
    (hiding_and_kicked, hiding_and_gone, True),
    (hiding_and_invisible, hiding_and_gone, True),
    (hiding_and_invisible_elsewhere, hiding_and_gone, True),
]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with PreloadedServer(*FLAGS) as server, PresenceReader(server.redis_url) as reader:
        yield Stage(server, reader)


def shape(value: Any, name: str = "") -> Any:
    """Return a state with times replaced by what is told without them."""
    if isinstance(value, dict):
        shaped = {key: shape(each, key) for key, each in value.items() if key != "uid"}
        if value.get("status") == "offline":
            shaped["was seen then"] = value["since_ms"] == value["last_seen_ms"]
        return shaped
    if isinstance(value, list):
        return [shape(each) for each in value]
    if value and name in {"since_ms", "last_seen_ms"}:
        return "a time"
    return "an id" if value and name == "id" else value


def asked(stage: Stage, uid: str) -> dict[str, list[Any]]:
    """Ask in every way, at all workers; return the different answers to each, with their sizes."""
    found: dict[str, list[Any]] = {}

    def note(name: str, answer: Any, size: int) -> None:
        seen = found.setdefault(name, [])
        if (entry := (shape(answer), size)) not in seen:
            seen.append(entry)

    for _ in range(LINES):
        line = Line(stage.server.address, protocol.login("asker", device=str(time.monotonic_ns())))
        for verb in (protocol.query, protocol.watch):
            for detail in (None, True):
                answer = line.ask(verb([uid], detail=detail))
                size = len(protocol.encode(answer._replace(id=1)))
                note(f"{verb.__name__}, detail {detail}", answer.payload["presence"][uid], size)
                line.ask(protocol.unwatch([uid]))
        answer = line.ask(protocol.message(uid, "hello"))
        note("message", answer.payload, 0)
        line.ask(protocol.logout())
        line.close()
    return found


def observe(stage: Stage, uid: str, play: Play) -> tuple[list[Any], dict[str, list[Any]], User]:
    """Play before a watching client; return what it was pushed, and the answers afterwards."""
    eve = Line(stage.server.address, protocol.login("eve", device=uid))
    assert eve.ask(protocol.watch([uid], detail=True)).payload["presence"][uid] == UNASKED | {"devices": []}
    user = User(uid, stage)
    play(user)
    pushed = [shape(dict(each.payload)) for each in eve.gather(0.3)]
    answers = asked(stage, uid)
    assert eve.gather(0.1) == []
    eve.ask(protocol.logout())
    eve.close()
    return pushed, answers, user


@pytest.mark.parametrize("case", CASES, ids=[each[0].__name__ for each in CASES])
def test_others_learn_what_they_learn_of_a_twin(stage: Stage, case: tuple[Play, Play, bool]) -> None:
    play, twin, same_pushes = case
    name = f"{CASES.index(case):02}"
    pushed, answers, user = observe(stage, f"case{name}", play)
    pushed_of_twin, answers_of_twin, other = observe(stage, f"twin{name}", twin)
    for each in (user, other):
        each.leave()
    assert answers == answers_of_twin
    assert all(len(each) == 1 for each in answers.values()), "at all workers the same"
    if same_pushes:
        assert pushed == pushed_of_twin
    told = repr((pushed, answers))
    assert not any(word in told for word in ("banned", "kicked", "invisible", "secret", "305", "301"))


def test_another_device_makes_an_invisible_user_visible(stage: Stage) -> None:
    eve = Line(stage.server.address, protocol.login("eve", device="back"))
    eve.ask(protocol.watch(["back"]))
    user = User("back", stage)
    invisible_user(user)
    user.log_out()
    user.log_in("desk")
    eve.gather(0.1)
    user.update("desk", status="busy", scope="user")
    assert eve.pushes() == [("back", "busy", "login")]
    assert {eve.status("back", verb)["status"] for verb in ("query", "watch")} == {"busy"}
    assert eve.message("back") == 0
    user.log_out("desk")
    user.log_in("phone")
    assert eve.pushes() == [("back", "offline", "logout"), ("back", "online", "login")]
    user.leave()
    eve.close()


def test_a_user_who_hides_the_times_is_shown_without_them_to_all_and_with_them_again(stage: Stage) -> None:
    eve = Line(stage.server.address, protocol.login("eve", device="times"))
    eve.ask(protocol.watch(["times"], detail=True))
    user = User("times", stage)
    user.log_in()
    assert [each.payload["since_ms"] is None for each in eve.gather(0.3)] == [False]
    user.update(hide=["last_seen"])
    (pushed,) = [dict(each.payload) for each in eve.gather(0.3)]
    hidden = {"status": "online", "since_ms": None, "last_seen_ms": None, "id": None}
    devices = [{"device": "phone", "status": "online", "since_ms": 0}]
    assert pushed == {"uid": "times", **hidden, "devices": devices, "reason": "updated"}
    answers = asked(stage, "times")
    assert [shaped for shaped, _ in answers["query, detail None"]] == [hidden]
    assert [shaped for shaped, _ in answers["watch, detail True"]] == [{**hidden, "devices": devices}]
    assert all(len(each) == 1 for each in answers.values()), "at all workers the same"
    user.update(hide=[])
    assert [each.payload["since_ms"] is None for each in eve.gather(0.3)] == [False]
    user.leave()
    eve.close()


async def test_the_backend_is_told_the_truth(stage: Stage) -> None:
    url, reader = stage.server.redis_url, stage.reader
    hidden, ended = User("truth-1", stage), User("truth-2", stage)
    hidden.log_in("desk", status="invisible", scope="user", hide=["last_seen"])
    ended.log_in(hide=["last_seen"])
    ended.ban()
    states = reader.states(["truth-1", "truth-2"])
    async with operators(url) as http:
        answers = {uid: (await http.ask(f"/v1/presence/{uid}")).json() for uid in states}
    told: dict[str, Online | Offline] = {}
    with subscribe_sync(url, after="0") as events:
        while not isinstance(told.get("truth-2"), Offline):
            if isinstance(event := next(events), Online | Offline):
                told[event.uid] = event
    for uid, state in states.items():
        assert state["since_ms"] == answers[uid]["since_ms"] > 0
        assert state["hide"] == answers[uid]["hide"] == ["last_seen"]
    assert (states["truth-1"]["status"], states["truth-1"]["invisible"]) == ("online", True)
    assert (states["truth-2"]["reason"], answers["truth-2"]["reason"]) == ("banned", "banned")
    assert isinstance(told["truth-1"], Online)
    assert told["truth-1"].invisible
    assert isinstance(told["truth-2"], Offline)
    assert told["truth-2"].reason == "banned"
    hidden.leave()


def test_an_invisible_user_stays_it_when_redis_loses_its_data_and_when_all_servers_restart() -> None:
    with LocalRedis() as redis, PresenceReader(redis.url) as reader:
        with PreloadedServer("--redis", redis.url, *FLAGS) as server:
            user = User("ann", Stage(server, reader))
            invisible_user(user)
            user.log_in("desk")
            user.log_out("phone")  # the one that made the user invisible
            with closing(Line(server.address, protocol.login("eve"))) as eve:
                eve.ask(protocol.watch(["ann"]))
                redis.client.flushall()
                wait_for(lambda: reader.state("ann").get("invisible"), 20)
                assert eve.pushes(1.0) in ([], [("ann", "offline", "logout")])
                assert {eve.status("ann", verb)["status"] for verb in ("query", "watch")} == {"offline"}
                assert eve.message("ann") == Code.RECIPIENT_OFFLINE
            user.log_out("desk")
        with PreloadedServer("--redis", redis.url, *FLAGS) as server:
            user = User("ann", Stage(server, reader))
            user.log_in("web")
            assert reader.state("ann")["invisible"]
            user.leave()


def test_the_client_shows_a_user_who_hides(stage: Stage) -> None:
    address = stage.server.address
    eve_comes, ann_comes = (connect_blocking(*address, uid=f"client-{name}") for name in ("eve", "ann"))
    with eve_comes as eve, ann_comes as ann:
        wait_for(lambda: eve.watch(["client-ann"])["client-ann"].status == "online")
        ann.update(hide=["last_seen"])
        wait_for(lambda: eve.watched["client-ann"].id is None)
        ann.update(status="invisible", scope="user")
        wait_for(lambda: eve.watched["client-ann"].status == "offline")
        assert eve.query(["client-ann"])["client-ann"] == UserState("offline")
        ann.update(status="online", scope="user", hide=[])
        wait_for(lambda: eve.watched["client-ann"].status == "online")
        assert eve.watched["client-ann"].since_ms


def test_times_of_answers_tell_nothing(stage: Stage) -> None:
    """The medians of interleaved questions about an invisible user and an offline one."""
    hidden, gone = User("timed-a", stage), User("timed-b", stage)
    invisible_user(hidden)
    logged_out(gone)
    took: dict[str, dict[str, list[float]]] = {}
    with closing(Line(stage.server.address, protocol.login("timer"))) as line:
        for _ in range(QUESTIONS):
            for uid in ("timed-a", "timed-b"):
                for packet in (protocol.query([uid]), protocol.watch([uid]), protocol.message(uid, 1)):
                    began = time.perf_counter()
                    line.ask(packet)
                    times = took.setdefault(Kind(packet.kind).name, {}).setdefault(uid, [])
                    times.append(time.perf_counter() - began)
                line.ask(protocol.unwatch([uid]))
    hidden.leave()
    for kind, by_user in took.items():
        ratio = median(by_user["timed-a"]) / median(by_user["timed-b"])
        print(f"{kind}: {median(by_user['timed-b']) * 1e3:.2f} ms, an invisible user {ratio:.2f} times that")
        assert 0.5 < ratio < 2
