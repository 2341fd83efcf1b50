"""A small storm of reconnecting TLS clients: all return, and those with sessions resume them."""

import pytest

from benchmarks.tls_storm import HEAD, KEYS, storm
from loadtest.outcome import markdown

CLIENTS = 40


@pytest.mark.nightly
@pytest.mark.parametrize("resumes", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_clients_resume_their_sessions_at_any_worker_after_a_reload(resumes: bool) -> None:
    found = storm(KEYS["p256"], CLIENTS, workers=3, resumes=resumes)
    assert found.granted == CLIENTS
    assert found.resumed == (CLIENTS if resumes else 0)
    assert found.attempts >= CLIENTS
    assert found.cpu_ms > 0
    print(markdown(HEAD, [found.cells()]))
