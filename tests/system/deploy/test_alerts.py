"""The alerts as Prometheus evaluates them, over hours of samples."""

import pytest

from tests.deploy.test_metrics import promtool


@pytest.mark.nightly
@pytest.mark.needs("promtool")
def test_alerts_fire_when_they_should_and_not_before() -> None:
    promtool("test", "rules", "alerts_test.yml")
