"""Like `locustfile.py`, with hundreds of devices for each user of locust, which costs less."""

from presence.loadtest.hooks import LoadUser, register_hooks


class SwarmUser(LoadUser):
    """500 devices, unless ``--connections`` says otherwise."""

    connections = 500


register_hooks()
