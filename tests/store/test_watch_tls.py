"""The channels of watched users over TLS, where what was read from the socket may wait in the library."""

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from presence.store.keys import Keys
from presence.store.watch_channel import WatchChannel
from presence.watching.channel import Confirmed, Heard, Pong
from tests.store.servers import Server

KEYS = Keys()
USERS = 2_000


class Terminator:
    """Takes TLS connections and hands on what is in them to a server's Unix socket."""

    def __init__(self, target: str, folder: Path) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(self._context)
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"rediss://localhost:{self._listener.getsockname()[1]}?ssl_ca_certs={folder / 'ca'}"
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                raw, _ = self._listener.accept()
                outside = self._context.wrap_socket(raw, server_side=True)
                inside = socket.socket(socket.AF_UNIX)
                inside.connect(self._target)
                self._open += [outside, inside]
                threading.Thread(target=self._hand_on, args=(outside, inside), daemon=True).start()

    @staticmethod
    def _hand_on(outside: ssl.SSLSocket, inside: socket.socket) -> None:
        """One thread for both ways: OpenSSL takes no more."""
        ways = {outside: inside, inside: outside}
        with suppress(OSError, ValueError):  # closed by the test
            while True:
                ready = [outside] if outside.pending() else select.select(list(ways), [], [])[0]
                for source in ready:
                    if not (data := source.recv(65536)):
                        return
                    ways[source].sendall(data)

    def close(self) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def channel(server: Server, folder: Path) -> Iterator[WatchChannel]:
    terminator = Terminator(server.url.removeprefix("unix://"), folder)
    channel = WatchChannel(terminator.url, KEYS, 0)
    channel.open()
    yield channel
    channel.close()
    terminator.close()


def test_all_is_heard_over_tls(channel: WatchChannel) -> None:
    uids = [f"user-{number}" for number in range(USERS)]
    channel.order(uids, [])
    channel.ping(channel.check())
    heard: list[Heard] = []
    while len(heard) <= USERS:
        heard += channel.hear()
    assert heard == [*map(Confirmed, uids), Pong((0, 0))]
    assert channel.snapshot(["ann"]).as_of == (0, 0)
