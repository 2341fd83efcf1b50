"""When a session may end, and when an offline event is false."""

import pytest

from loadtest.checker.endings import NO_CLAIM, Claim, Given, Promised, is_false, is_founded
from protocol import Code

PROMISED = Promised(idle_timeout=5.0, grace=1.0)


@pytest.mark.parametrize(
    ("code", "given", "founded"),
    [
        (Code.IDLE_TIMEOUT, Given(5.0, None, False, False), True),
        (Code.IDLE_TIMEOUT, Given(4.9, None, False, False), False),
        (Code.CLOSED, Given(1.5, 1.0, False, False), True),
        (Code.CLOSED, Given(1.5, 0.5, False, False), False),
        (Code.CLOSED, Given(5.0, None, False, False), True),
        (Code.LOGOUT, Given(0.1, None, True, False), True),
        (Code.LOGOUT, Given(9.0, 9.0, False, False), False),
        (Code.REPLACED, Given(0.1, None, False, True), True),
        (Code.REPLACED, Given(0.1, None, False, False), False),
        (Code.KICKED, Given(9.0, 9.0, True, True), False),
    ],
)
def test_an_end_needs_a_reason_that_the_client_gave(code: Code, given: Given, founded: bool) -> None:
    assert is_founded(code, given, PROMISED) is founded


@pytest.mark.parametrize(
    ("claim", "false"),
    [
        (Claim(1.0, 1.5, 9.0), True),
        (Claim(2.5, 2.6, 9.0), False),  # it logged in after the decision
        (Claim(1.0, 4.0, 9.0), False),  # Redis need not know of it yet
        (Claim(1.0, 1.5, 2.0), False),  # it was gone by then
        (NO_CLAIM, False),
    ],
)
def test_an_offline_event_is_false_while_a_known_session_lives(claim: Claim, false: bool) -> None:
    assert is_false(claim, decided=2.0, told=3.0) is false
