"""Those who look: Prometheus, viewers of the page, clients that are stuck; in a process of their own.

``python -m loadtest.operators.lookers HOST PORT KIND COUNT`` looks until standard input ends, and then prints
one JSON object: what it saw, `Seen`.
"""

import json
import socket
import sys
from dataclasses import asdict, dataclass

import trio

SCRAPE, VIEWERS, STUCK = "scrape", "viewers", "stuck"
KINDS = (SCRAPE, VIEWERS, STUCK)
SCRAPE_INTERVAL_S = 1.0
SMALL_BUFFER_BYTES = 4096
CHUNK_BYTES = 65_536


@dataclass
class Seen:
    """What was seen: answers to whole requests, pieces of the live stream, bytes; and what failed."""

    answers: int = 0
    samples: int = 0
    bytes: int = 0
    failed: int = 0


class Lookers:
    """Some who look at one address.

    Args:
        address: host and port of the HTTP interface.
        seen: is counted in.
    """

    def __init__(self, address: tuple[str, int], seen: Seen) -> None:
        self._address = address
        self._seen = seen

    def request(self, path: str) -> bytes:
        """Return a request that ends its connection."""
        host = f"{self._address[0]}:{self._address[1]}"
        return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()

    async def scrape(self) -> None:
        """Ask for the metrics each second."""
        due = trio.current_time()
        while True:
            await self._ask("/metrics")
            due += SCRAPE_INTERVAL_S
            await trio.sleep_until(due)

    async def _ask(self, path: str) -> None:
        try:
            stream = await trio.open_tcp_stream(*self._address)
            async with stream:
                await stream.send_all(self.request(path))
                answer = b""
                async for chunk in stream:
                    answer += chunk
        except OSError:
            self._seen.failed += 1
            return
        self._seen.bytes += len(answer)
        if answer.startswith(b"HTTP/1.1 200"):
            self._seen.answers += 1
        else:
            self._seen.failed += 1

    async def view(self) -> None:
        """Look at the live stream, as the page does."""
        try:
            stream = await trio.open_tcp_stream(*self._address)
            async with stream:
                await stream.send_all(self.request("/v1/live"))
                tail = b""
                async for chunk in stream:
                    self._seen.bytes += len(chunk)
                    found = tail + chunk
                    self._seen.samples += found.count(b"event: sample")
                    tail = found[-len(b"event: sample") + 1 :]
        except OSError:
            pass
        self._seen.failed += 1  # nobody ends it but we

    async def be_stuck(self, sent: bytes) -> None:
        """Send something, and never read; come again when it is closed."""
        while True:
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
                client = trio.socket.from_stdlib_socket(sock)
                try:
                    await client.connect(self._address)
                    await client.send(sent)
                    self._seen.answers += 1
                    await trio.sleep(5)
                except OSError:
                    self._seen.failed += 1
                    await trio.sleep(0.1)

    def start(self, nursery: trio.Nursery, kind: str, count: int) -> None:
        """Start so many of a kind."""
        for _ in range(count):
            if kind == SCRAPE:
                nursery.start_soon(self.scrape)
            elif kind == VIEWERS:
                nursery.start_soon(self.view)
            else:
                for sent in (self.request("/v1/live"), self.request("/metrics") * 50, b"GET /metr", b""):
                    nursery.start_soon(self.be_stuck, sent)


async def _look(host: str, port: int, kind: str, count: int) -> None:
    seen = Seen()
    async with trio.open_nursery() as nursery:
        Lookers((host, port), seen).start(nursery, kind, count)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()
    print(json.dumps(asdict(seen)), flush=True)


if __name__ == "__main__":
    trio.run(_look, sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
