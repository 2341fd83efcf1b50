"""What holds for all tests, however they are started."""

import signal
from collections.abc import Iterator

import pytest

from tests.conftest import pytest_configure


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_shell_that_has_sigint_ignored_is_not_heeded() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pytest_configure()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_that_is_there_stays() -> None:
    def handler(number: int, frame: object) -> None:
        raise AssertionError("nobody sends it")

    signal.signal(signal.SIGINT, handler)
    pytest_configure()
    assert signal.getsignal(signal.SIGINT) is handler
