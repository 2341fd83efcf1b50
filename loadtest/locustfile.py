"""``locust -f loadtest/locustfile.py`` is ``python -m presence.loadtest``."""

from presence.loadtest.locustfile import DeviceUser

__all__ = ["DeviceUser"]
