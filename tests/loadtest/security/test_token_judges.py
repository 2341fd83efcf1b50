"""What is held against a server that treats tokens, and those who show them, otherwise than it promises."""

import random
from collections import Counter

import pytest

from loadtest.security import flood_forged, timing, tokens
from loadtest.security.attempts import GRANTED, Attempt
from loadtest.security.flood_forged import Load
from loadtest.security.timing import CONTROL, KNOWN, UNKNOWN
from loadtest.security.tokens import Tries
from protocol import Code

GOOD, REFUSED = Attempt(0.0, 0.01, GRANTED, 0.0), Attempt(0.0, 3.0, Code.AUTH_FAILED, 0.0)


def tries(**of: object) -> Tries:
    found = Tries(Counter({"kid": 10, "exp": 10}), Counter(), good=1, words={"no"})
    for name, value in of.items():
        setattr(found, name, value)
    return found


def test_tokens_that_are_all_refused_are_no_fault() -> None:
    assert tokens.judge(tries(), tries(), other_is_told=True, broken=[]).failures == []


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ({"accepted": Counter({"alg": 1})}, "1 tampered tokens were taken: {'alg': 1}"),
        ({"unchecked": 2}, "2 tokens were not checked"),
        ({"words": {"no", "expired"}}, "refusals differ: ['expired', 'no']"),
    ],
)
def test_one_that_is_taken_or_told_more_is(of: dict[str, object], words: str) -> None:
    assert tokens.judge(tries(**of), tries(), other_is_told=True, broken=[]).failures == [words]


def test_a_token_of_another_user_has_to_be_refused() -> None:
    assert tokens.judge(tries(), tries(), other_is_told=False, broken=[]).failures


def test_where_no_good_token_is_taken_nothing_is_shown() -> None:
    assert not tokens.judge(tries(refused=Counter(kid=5000)), tries(), other_is_told=True, broken=[]).injected


def times(**shifts_us: float) -> dict[str, list[float]]:
    """Return samples of 500 µs and more, each later by its shift."""
    chance = random.Random(3)
    ways = {KNOWN: 0.0, UNKNOWN: 0.0, CONTROL: -200.0} | {
        name.replace("_", " "): shift for name, shift in shifts_us.items()
    }
    return {
        name: [(500 + shift + chance.expovariate(1 / 50)) / 1e6 for _ in range(2000)]
        for name, shift in ways.items()
    }


def test_times_of_one_kind_are_no_fault() -> None:
    outcome = timing.judge(times(expired=20.0), 0, [])
    assert outcome.failures == []
    assert "expired p" in outcome.measured


def test_a_user_whom_nobody_knows_and_who_is_refused_later_is() -> None:
    assert "unknown user is told" in timing.judge(times(unknown_user=10.0), 0, []).failures[0]


def test_a_machine_on_which_no_difference_is_seen_shows_nothing() -> None:
    assert not timing.judge(times(no_token=0.0), 0, []).injected


def test_good_logins_granted_beside_forged_ones_are_no_fault() -> None:
    loads = [Load(0.0, [GOOD] * 10, []), Load(9.0, [GOOD] * 9 + [REFUSED], [REFUSED] * 9)]
    assert flood_forged.judge(loads, flood_forged.Sizes(), []).failures == []


@pytest.mark.parametrize(
    ("worst", "words"),
    [
        (Load(9.0, [GOOD] * 8 + [REFUSED] * 2, [REFUSED]), "80.0% of good logins"),
        (Load(9.0, [GOOD] * 10, [REFUSED, GOOD]), "1 forged tokens were taken"),
    ],
)
def test_fewer_of_them_or_forged_ones_granted_are(worst: Load, words: str) -> None:
    (broken,) = flood_forged.judge([Load(0.0, [GOOD] * 10, []), worst], flood_forged.Sizes(), []).failures
    assert words in broken
