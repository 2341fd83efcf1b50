"""The crowd, for locust: the mixed scenario with watches, renewed tokens, and statuses."""

import random

from presence import protocol
from presence.loadtest.device import LoadDevice
from presence.loadtest.hooks import LoadUser, register_hooks
from presence.protocol import Code

WATCHED = 5  # others, by each device
STATUSES = ("online", "away", "busy", "invisible")


class SoakDevice(LoadDevice):
    """A device that, whenever it comes online, watches others, renews its token and shows a status."""

    # While Redis restarts, a server cannot look up where a recipient is.
    expected_codes = (*LoadDevice.expected_codes, Code.SERVER_ERROR, Code.BUSY)

    def on_online(self) -> None:
        others = random.sample(self.peers, min(WATCHED, len(self.peers)))
        self.request("watch", protocol.watch(others))
        self.request("token renewed", protocol.update(token=self._token))
        self.request("status", protocol.update(status=random.choice(STATUSES), meta={"page": self.uid}))


class SoakUser(LoadUser):
    """500 devices."""

    connections = 500
    device_class = SoakDevice


register_hooks()
