"""Fixtures of the tests of the client's state machine."""

import pytest

from tests.client.machine_driver import Driven


@pytest.fixture
def online() -> Driven:
    """A client that is logged in."""
    driven = Driven()
    driven.log_in()
    return driven
