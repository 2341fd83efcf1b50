"""The last step: packets to connections of this node, gathered so that each is written to once."""

from presence.registry import Session


class Handing:
    """Packets of one batch."""

    def __init__(self) -> None:
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
                session.link.send(session.handle, b"".join(packets))
