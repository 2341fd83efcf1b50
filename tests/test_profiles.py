"""What others are shown of a session: what its client says, and being away by itself."""

from presence.changes import PLAIN, Profile
from presence.profiles import Profiles
from protocol import Code

ONE, OTHER = 1, 2


def test_a_plain_session_shows_nothing_and_takes_nothing() -> None:
    profiles = Profiles()
    assert profiles.of(ONE) is PLAIN
    assert profiles.update(ONE, away=False, meta="") is None
    assert profiles.wake(ONE) is None
    assert not profiles._shown


def test_what_changes_has_a_code() -> None:
    profiles = Profiles()
    assert profiles.update(ONE, meta="{}") is Code.UPDATED
    assert profiles.update(ONE, meta="{}") is None
    assert profiles.update(ONE, away=True) is Code.AWAY
    assert profiles.of(ONE) == Profile(away=True, meta="{}")
    assert profiles.update(ONE, meta="") is Code.UPDATED
    assert profiles.update(ONE, away=False, meta="[]") is Code.BACK
    assert profiles.of(ONE) == Profile(away=False, meta="[]")
    assert profiles.of(OTHER) == PLAIN


def test_whoever_is_plain_again_takes_nothing_again() -> None:
    profiles = Profiles()
    profiles.update(ONE, away=True, meta="{}")
    assert profiles.update(ONE, away=False, meta="") is Code.BACK
    profiles.doze(OTHER)
    profiles.wake(OTHER)
    assert not profiles._shown
    assert not profiles._dozing


def test_who_is_away_by_itself_is_back_by_itself_and_keeps_its_meta() -> None:
    profiles = Profiles()
    profiles.update(ONE, meta="{}")
    assert profiles.doze(ONE) is Code.AWAY
    assert profiles.doze(ONE) is None
    assert profiles.of(ONE) == Profile(away=True, meta="{}")
    assert profiles.wake(ONE) is Code.BACK
    assert profiles.wake(ONE) is None
    assert profiles.of(ONE) == Profile(meta="{}")


def test_who_says_that_it_is_away_is_away_until_it_says_otherwise() -> None:
    profiles = Profiles()
    profiles.update(ONE, away=True)
    assert profiles.doze(ONE) is None
    assert profiles.wake(ONE) is None
    assert profiles.update(ONE, meta="{}") is Code.UPDATED
    assert profiles.of(ONE).away
    assert profiles.update(ONE, away=False) is Code.BACK


def test_who_is_away_by_itself_and_says_so_stays_away() -> None:
    profiles = Profiles()
    profiles.doze(ONE)
    assert profiles.update(ONE, away=True) is None
    assert profiles.wake(ONE) is None
    assert profiles.of(ONE).away


def test_another_meta_is_a_sign_of_who_is_away_by_itself() -> None:
    profiles = Profiles()
    profiles.doze(ONE)
    assert profiles.update(ONE, meta="{}") is Code.BACK
    assert profiles.of(ONE) == Profile(away=False, meta="{}")


def test_who_has_ended_is_forgotten() -> None:
    profiles = Profiles()
    profiles.update(ONE, away=True)
    profiles.doze(OTHER)
    assert profiles.away == 2
    profiles.forget(ONE)
    profiles.forget(OTHER)
    assert profiles.away == 0
    assert not profiles._dozing
