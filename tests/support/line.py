"""A connection on which a blocking test sends packets and reads what comes."""

import socket
from typing import Any, Final

from presence import protocol
from presence.protocol import Decoder, Kind, Packet

ANSWER_TIMEOUT_S: Final = 5.0


class Line:
    """A connection on which a test sends packets and reads what comes; an answer comes within `timeout_s`."""

    def __init__(
        self, address: tuple[str, int], login: Packet, *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        self._sock = socket.create_connection(address)
        self._timeout_s = timeout_s
        self._decoder = Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)
        self._ids = iter(range(1, 1_000_000))
        self.pushed: list[Packet] = []
        try:
            self.answer = self.ask(login)
        except BaseException:
            self.close()
            raise

    def ask(self, packet: Packet) -> Packet:
        """Send a request; return its answer, and keep what is pushed before."""
        return self.ask_all([packet])[0]

    def ask_all(self, packets: list[Packet]) -> list[Packet]:
        """Send requests together; return their answers in order, and keep what is pushed before."""
        asked = [packet._replace(id=next(self._ids)) for packet in packets]
        self._sock.sendall(b"".join(map(protocol.encode, asked)))
        answers: dict[int | None, Packet] = {}
        while not all(packet.id in answers for packet in asked):  # not that of a request that timed out
            got = self.read(self._timeout_s)
            if got.kind in {Kind.OK, Kind.ERROR}:
                answers[got.id] = got
            else:
                self.pushed.append(got)
        return [answers[packet.id] for packet in asked]

    def read(self, timeout_s: float) -> Packet:
        """Return the next packet; raises TimeoutError or ConnectionError."""
        while (packet := self._decoder.next()) is None:
            self._sock.settimeout(timeout_s)
            data = self._sock.recv(65536)
            if not data:
                raise ConnectionError(f"the server closed the connection, after {self.pushed[-1:]}")
            self._decoder.feed(data)
        return packet

    def gather(self, wait_s: float) -> list[Packet]:
        """Return what was pushed, waiting for so long for more."""
        try:
            while True:
                self.pushed.append(self.read(wait_s))
        except TimeoutError:
            pushed, self.pushed = self.pushed, []
            return pushed

    def pushes(self, wait_s: float = 0.5) -> list[tuple[str, str, str]]:
        """Return the user, status and reason of what was pushed, waiting for so long for more."""
        fields = ("uid", "status", "reason")
        return [tuple(each.payload[name] for name in fields) for each in self.gather(wait_s)]

    def status(self, uid: str, verb: str = "query") -> dict[str, Any]:
        packet = protocol.query([uid]) if verb == "query" else protocol.watch([uid])
        states: dict[str, dict[str, Any]] = self.ask(packet).payload["presence"]
        return states[uid]

    def message(self, to: str) -> int:
        """Send a message; return 0, or the code of the refusal."""
        answer = self.ask(protocol.message(to, "hello"))
        return int(answer.payload.get("code", 0))

    def close(self) -> None:
        self._sock.close()
