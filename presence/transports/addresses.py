"""By which address each connection counts. Kept only where the kernel could not say it, or it is counted."""

from presence import networks
from presence.admission import Admission, Refusal
from presence.transports import tcp


class Addresses:
    """Addresses of clients, by descriptor.

    Args:
        admission: counts connections by address, if it bounds them.

    Attributes:
        told: addresses that were told or counted; one that is not here is the kernel's.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.told: dict[int, str] = {}

    def settle(self, fd: int, address: str, *, told: bool = False) -> Refusal | None:
        """It is known who is at the other end.

        Args:
            fd: the connection.
            address: of the client; "" if it has none, which nobody counts.
            told: whether somebody else than the kernel says so.

        Returns:
            None, or what the client is to be told: its address has as many connections as it may have.
        """
        counted = self._admission.counts_connections
        if not address or not (told or counted):
            return None
        client = networks.client_of(address)
        if counted and (refusal := self._admission.enter(client)) is not None:
            return refusal
        self.told[fd] = client
        return None

    def of(self, fd: int) -> str:
        """Return what limits count a connection by, see `networks.client_of`; "": nothing."""
        if (address := self.told.get(fd)) is not None:
            return address
        with tcp.borrowed(fd) as sock:
            return networks.client_of(tcp.peer_address(sock))

    def forget(self, fd: int) -> None:
        """The connection is closed."""
        if (address := self.told.pop(fd, None)) is not None and self._admission.counts_connections:
            self._admission.leave(address)
