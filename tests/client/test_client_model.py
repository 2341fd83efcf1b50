"""A client in a world where anything happens at any time; faults that were there once are noticed.

`tests/system/client/test_client_model.py` takes a hundred times as many steps.
"""

from collections.abc import Callable
from typing import Any

import pytest

from presence.client.connection import OwnRequests
from presence.client.kept_state import PersistentState
from presence.client.login_token import LoginToken
from presence.client.message_lines import MessageLines
from presence.client.watched_users import WatchedUsers
from tests.client.world import World

STEPS = 1500  # of one seed
SEEDS = 4
PLANTED_SEEDS = 60  # at most, for each planted fault
FIRST_SEEDS = (1, 13, 52, 51, 36, 8)  # noticed most of the faults; the others follow

Method = Callable[..., Any]


@pytest.mark.parametrize("fetches", [False, True], ids=["without tokens", "with a token function"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_the_client_does_what_it_should(seed: int, fetches: bool) -> None:
    World(seed, fetches=fetches).run(STEPS)


def finds_a_fault() -> bool:
    """Whether the model notices that the client is not what it should be."""
    for seed in dict.fromkeys([*FIRST_SEEDS, *range(PLANTED_SEEDS)]):
        try:
            World(seed, fetches=bool(seed % 2)).run(STEPS)
        except AssertionError:
            return True
    return False


def test_a_good_token_taken_for_the_refused_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LoginToken._why_useless

    def wrong(self: LoginToken, token: str, now: float) -> str:
        if self._refusal is not None and token == self._persistent_state.token:
            return "the token is the one that the server has refused"
        return right(self, token, now)

    monkeypatch.setattr(LoginToken, "_why_useless", wrong)
    assert finds_a_fault()


def test_pauses_that_only_grow_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = OwnRequests._answered

    def wrong(self: OwnRequests, *arguments: Any) -> Any:
        backoff = self._backoff
        effects = right(self, *arguments)
        self._backoff = backoff
        return effects

    monkeypatch.setattr(OwnRequests, "_answered", wrong)
    assert finds_a_fault()


def test_messages_that_overtake_others_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MessageLines.join

    def wrong(self: MessageLines, *arguments: Any, retries: bool) -> bool:
        right(self, *arguments, retries=retries)
        return True

    monkeypatch.setattr(MessageLines, "join", wrong)
    assert finds_a_fault()


def test_a_refused_token_that_is_sent_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoginToken, "_why_useless", lambda *_: "")
    assert finds_a_fault()


@pytest.mark.parametrize(
    "plant",
    [
        lambda _: lambda *_: None,  # no room is kept
        lambda right: lambda self, update, _: right(self, update, {"joined": []}),  # of an older server, too
        lambda right: lambda self, update, answer: right(self, {**update, "leave": ()}, answer),
    ],
)
def test_a_fault_of_rooms_is_noticed(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[Method], Method]
) -> None:
    monkeypatch.setattr(PersistentState, "_rooms_after", plant(PersistentState._rooms_after))
    assert finds_a_fault()


def forgets_who_was_listed(right: Method) -> Method:
    def roster_granted(self: WatchedUsers, *arguments: Any, **options: Any) -> Any:
        self._listed.clear()
        return right(self, *arguments, **options)

    return roster_granted


def names_no_listed_user(right: Method) -> Method:
    def add(self: WatchedUsers, uids: list[str]) -> list[str]:
        known = self.states()
        return [uid for uid in right(self, uids) if uid not in known]

    return add


@pytest.mark.parametrize(
    ("method", "plant"),
    [
        ("roster_granted", forgets_who_was_listed),
        ("add", names_no_listed_user),
        ("_joins", lambda _: lambda self, uid: self.follows_roster),  # before the server has read an unwatch
        ("unwatch_roster", lambda _: WatchedUsers.end_roster),  # a request of before it may be granted
        ("listed_batches", lambda _: lambda _: iter(())),  # nobody is asked for at an older server
        ("is_listed", lambda _: lambda *_: False),  # a request of before names who was listed since
    ],
)
def test_a_fault_of_the_roster_is_noticed(
    monkeypatch: pytest.MonkeyPatch, method: str, plant: Callable[[Method], Method]
) -> None:
    monkeypatch.setattr(WatchedUsers, method, plant(getattr(WatchedUsers, method)))
    assert finds_a_fault()
