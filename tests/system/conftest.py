"""The full tier: real processes, real time, faults, clusters, browsers, other languages."""

from pathlib import Path

import pytest
from hypothesis import settings

FOLDER = Path(__file__).parent
TIME_LIMIT_S = 180

settings.load_profile("system")  # over that of the fast tier, which tests/conftest.py has loaded


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give these tests more time than those of the fast tier have."""
    for item in items:
        if FOLDER in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIME_LIMIT_S))
