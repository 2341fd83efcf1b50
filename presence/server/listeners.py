"""The listening sockets of a server: plain TCP, TLS, or both, and WebSocket."""

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from presence.config.settings import Settings
from presence.transports import sockets


class CannotListen(Exception):
    """An address cannot be listened on.

    Attributes:
        address: as ``HOST:PORT``.
        problem: why.
    """

    def __init__(self, address: str, error: OSError) -> None:
        super().__init__(f"{address}: {error.strerror or error}")
        self.address = address
        self.problem = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            self.problem += f": give another, or see ss -ltnp 'sport = :{address.rpartition(':')[2]}'"


class ListenAddress(NamedTuple):
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Listeners:
    """Listening sockets, one for each address of the host."""

    plain: list[socket.socket]  # for TCP; empty if there is TLS only
    secured: list[socket.socket]  # for TLS; empty if there is none
    websocket: list[socket.socket]  # for WebSocket; empty if there is none

    @property
    def address(self) -> ListenAddress:
        """The address that is reported as ready, that of the setting `port`."""
        return _address_of(self.plain or self.secured)

    @property
    def secured_address(self) -> ListenAddress | None:
        """The address for TLS; None if there is none."""
        return _address_of(self.secured) if self.secured else None

    @property
    def websocket_address(self) -> ListenAddress | None:
        """The address for WebSocket; None if there is none."""
        return _address_of(self.websocket) if self.websocket else None

    @property
    def all(self) -> list[socket.socket]:
        return [*self.plain, *self.secured, *self.websocket]

    def close(self) -> None:
        for each in self.all:
            each.close()


def open_listeners(settings: Settings, *, shared: bool = False) -> Listeners:
    """Return sockets that listen on the addresses of the settings.

    With `shared` other processes of this user may share the addresses; the kernel distributes connections.

    Raises:
        CannotListen: an address is unavailable; no socket stays open.
    """
    return _open(settings, lambda host, port: sockets.open_listeners(host, port, shared=shared))


def reserve_addresses(settings: Settings) -> Listeners:
    """Return bound sockets that reserve the addresses for listeners that share them.

    Raises:
        CannotListen: see `open_listeners`.
    """
    return _open(settings, sockets.reserve)


def with_actual_ports(settings: Settings, reserved: Listeners) -> Settings:
    """Return the settings with the picked ports in place of zeros."""
    found = replace(settings, port=reserved.address.port)
    if reserved.plain and reserved.secured_address is not None:
        found = replace(found, tls_port=reserved.secured_address.port)
    if reserved.websocket_address is not None:
        found = replace(found, ws_port=reserved.websocket_address.port)
    return found


def _open(settings: Settings, open_address: Callable[[str, int], list[socket.socket]]) -> Listeners:
    opened = Listeners([], [], [])

    def listen(sockets: list[socket.socket], host: str, port: int) -> None:
        try:
            sockets += open_address(host, port)
        except OSError as error:
            opened.close()
            raise CannotListen(f"{host}:{port}", error) from error

    has_tls = settings.tls_cert is not None
    if not (has_tls and settings.tls_only):
        listen(opened.plain, settings.host, settings.port)
    if has_tls:
        listen(opened.secured, settings.host, settings.port if settings.tls_only else settings.tls_port)
    if settings.ws_port is not None:
        listen(opened.websocket, settings.websocket_host, settings.ws_port)
    return opened


def _address_of(bound: list[socket.socket]) -> ListenAddress:
    host, port = bound[0].getsockname()[:2]
    return ListenAddress(host, port)
