"""A small run of the benchmark of bad networks, with the clients in both languages."""

import pytest

from benchmarks.java_clients import build
from benchmarks.networks.__main__ import measure
from benchmarks.networks.lossy_link import NETWORKS
from benchmarks.networks.verdict import TimeoutSetting


@pytest.mark.nightly
@pytest.mark.parametrize("client", ["python", pytest.param("java", marks=pytest.mark.needs("javac"))])
def test_phones_come_online_on_each_network_and_on_the_good_ones_nobody_is_lost(client: str) -> None:
    if client == "java":
        build()
    setting = TimeoutSetting(6, 2)
    outcomes = measure([setting], phones=3, seconds=60, seed="a", client=client)[setting]
    assert outcomes.keys() == {network.name for network in NETWORKS}
    assert all(outcome.online == outcome.phones >= 3 for outcome in outcomes.values())
    assert outcomes["Wi-Fi to cellular"].returns > 0
    for name in ("office Wi-Fi", "4G"):
        assert (outcomes[name].false, outcomes[name].returns) == (0, 0)
