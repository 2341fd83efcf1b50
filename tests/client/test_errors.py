"""Errors as values: a program passes them on to other processes, and copies them."""

import copy
import pickle

import pytest

from presence.client import (
    Busy,
    ConnectionLost,
    EncodeError,
    LoginRefused,
    NoToken,
    PresenceError,
    RequestTimeout,
    ServerFailed,
    Unreachable,
)

ERRORS = [
    Busy(404, "busy", "too much", 2.5),
    ServerFailed(403, "server_error"),
    LoginRefused(303, "auth_failed", "no"),
    Unreachable("here:7400", "no way there"),
    NoToken(KeyError("session")),
    ConnectionLost("closed"),
    RequestTimeout("no answer"),
    EncodeError("too long"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("passed", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_arrives_as_it_was(error: PresenceError, passed: object) -> None:
    arrived = passed(error)  # type: ignore[operator]
    assert (type(arrived), str(arrived)) == (type(error), str(error))
    for name in ("code", "reason", "message", "retry_after"):
        assert getattr(arrived, name, None) == getattr(error, name, None)
    assert repr(arrived.__cause__) == repr(error.__cause__)
