"""Devices under locust that know what they did, and so whether the server's events are true.

``locust -f loadtest/locustfile.py``; README.md beside this file says more. Locust patches the process with
gevent when it is imported: never import this module beside trio or in the tests' process.
"""

from presence.loadtest.hooks import SPAWN_S, LoadUser, register_hooks


class DeviceUser(LoadUser):
    """One device with a user of its own; the scenario decides what it does."""

    def on_start(self) -> None:
        self.start_devices(1, SPAWN_S)


register_hooks()
