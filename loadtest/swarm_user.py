"""Hundreds of devices for each user of locust: more load with less.

``locust -f loadtest/swarm_user.py --users 20 --connections 500`` are 10,000 devices.
"""

from presence.loadtest.hooks import SPAWN_S, LoadUser, register_hooks


class SwarmUser(LoadUser):
    """As many devices as ``--connections`` says, each with a user of its own."""

    def on_start(self) -> None:
        options = self.environment.parsed_options
        assert options is not None
        self.start_devices(options.connections, SPAWN_S)


register_hooks()
