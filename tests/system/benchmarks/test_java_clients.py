"""A small run of the benchmark of many clients in one JVM."""

import pytest

from benchmarks.java_clients import is_quiet, measure


@pytest.mark.nightly
@pytest.mark.needs("javac")
def test_each_client_stays_online_and_they_share_their_threads() -> None:
    found = measure(clients=200, seconds=2)
    assert is_quiet(found, clients=200)
    assert not is_quiet(found, clients=201)
    assert isinstance(found["client_threads"], int)
    assert found["client_threads"] <= 6
