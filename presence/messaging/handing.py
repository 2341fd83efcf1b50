"""The last step: packets to connections of this node, gathered so that each is written to once."""

from functools import partial

from presence.faults import Faults
from presence.registry import Session


class Handing:
    """Packets of one batch.

    Args:
        faults: contains mistakes: a connection that cannot be written to ends.
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._packets: dict[Session, list[bytes]] = {}

    def add(self, session: Session, packet: bytes) -> bool:
        """Take a packet for a session's connection, after those before it; False: the connection is gone."""
        if session.link is None:
            return False
        packets = self._packets.get(session)
        if packets is None:
            self._packets[session] = [packet]
        else:
            packets.append(packet)
        return True

    def send(self) -> None:
        """Write everything."""
        gathered, self._packets = self._packets, {}
        for session, packets in gathered.items():
            if session.link is not None:  # an earlier write may have ended it
                with self._faults.contained("message", partial(self._faults.disconnect, session)):
                    session.link.send(session.handle, b"".join(packets))
