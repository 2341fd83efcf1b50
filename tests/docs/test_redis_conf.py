"""What the page on Redis says of redis.conf: settings that there are, with values that they take."""

import re

import pytest

from tests.docs.roles import PAGE, ask
from tests.store.servers import Server

SETTINGS = re.findall(r"^\| `([a-z-]+) ([^` ]+)` \|", PAGE, re.MULTILINE)
OF_TLS = {name for name, _ in SETTINGS if name.startswith("tls-")}


def test_settings_take_their_values(server: Server) -> None:
    plain = [(name, value) for name, value in SETTINGS if name not in OF_TLS]
    assert len(plain) > 8
    for name, value in plain:
        server.client.config_set(name, value)


@pytest.mark.parametrize("server", ["redis-server"], indirect=True)
@pytest.mark.needs("redis-server")  # the embedded one has no TLS
def test_settings_of_tls_are_known(server: Server) -> None:
    assert OF_TLS
    assert all(ask(server.client, "CONFIG", "GET", name) for name in OF_TLS)
