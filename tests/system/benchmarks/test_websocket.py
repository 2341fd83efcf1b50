"""A small run of WebSocket beside TCP: every keepalive is answered, in both subprotocols."""

import pytest

from benchmarks.load_generator import ANSWERED, UNANSWERED
from benchmarks.progress import Bar
from benchmarks.websocket import ALONE, TCP, WEBSOCKET, measure, parse


@pytest.mark.nightly
@pytest.mark.parametrize(
    "subprotocol", [[], pytest.param(["--json"], marks=pytest.mark.nightly)], ids=["frames", "JSON"]
)
def test_both_transports_are_measured_on_one_server(subprotocol: list[str]) -> None:
    words = ["--connections", "60", "--rate", "100", "--seconds", "0.5", "--rounds", "1", "--logins", "5"]
    with Bar(1.0) as bar:
        found = measure(parse([*words, *subprotocol]), bar)
    assert found.cost_us.keys() == {
        (name, kind) for name in (ALONE, TCP, WEBSOCKET) for kind in (UNANSWERED, ANSWERED)
    }
    assert {name: len(taken) for name, taken in found.logins_s.items()} == {ALONE: 5, TCP: 5, WEBSOCKET: 5}
    assert not [each for each in found.complaints if "unanswered" in each]
