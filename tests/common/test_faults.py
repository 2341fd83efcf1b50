"""Contained faults: counted and logged, with a traceback unless the machine lacks something."""

import errno

import structlog

from presence.common.faults import Faults
from presence.common.threads import NoThread


def test_a_mistake_is_logged_with_its_traceback() -> None:
    faults = Faults()
    with structlog.testing.capture_logs() as logs:
        faults.record("query", LookupError("a mistake"))
    (line,) = logs
    assert isinstance(line["exc_info"], LookupError)
    assert faults.counts == {"query": 1}


def test_a_scarcity_is_logged_in_one_line() -> None:
    faults = Faults()
    with structlog.testing.capture_logs() as logs:
        faults.record("query", NoThread(errno.EAGAIN, "can't start new thread"))
    (line,) = logs
    assert line["event"] == "query failed"
    assert line["error"].startswith("can't start new thread")
    assert "exc_info" not in line
