"""The models of the fast tier, with as many examples as a night has time for."""

import pytest

from tests.client.test_rewatching_model import TestWatching
from tests.test_core_model import TestCoreAgainstModel
from tests.test_wheel import TestWheelAgainstDict
from tests.watching.test_view_model import TestViews

pytestmark = pytest.mark.nightly

__all__ = ["TestCoreAgainstModel", "TestViews", "TestWatching", "TestWheelAgainstDict"]
