"""The models of the fast tier, with as many examples as a night has time for."""

import pytest

from tests.client.test_resubscription_model import TestWatching
from tests.core.test_engine_model import test_the_core_fits_its_model
from tests.core.test_wheel import TestWheelAgainstDict
from tests.watching.test_shard_view_model import TestViews

pytestmark = pytest.mark.nightly

__all__ = ["TestViews", "TestWatching", "TestWheelAgainstDict", "test_the_core_fits_its_model"]
