"""What nodes tell each other of their settings."""

from presence.settings import SPECS, Settings


def test_what_nodes_had_better_have_alike_is_told_by_name() -> None:
    told = dict(pair.split("=") for pair in Settings(lease=12.5, max_sessions=3).shared.split())
    assert told.keys() <= SPECS.keys()
    assert told.items() >= {"lease": "12.5", "max_sessions": "3", "session_policy": "oldest"}.items()
