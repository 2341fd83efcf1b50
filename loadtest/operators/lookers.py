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
SAMPLE = b"event: sample"

Address = tuple[str, int]


@dataclass
class Seen:
    """Answers to whole requests, samples of the live stream, and failures."""

    answers: int = 0
    samples: int = 0
    failed: int = 0


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()


async def scrape(address: Address, seen: Seen) -> None:
    """Scrape the metrics each second."""
    due = trio.current_time()
    while True:
        answer = b""
        try:
            async with await trio.open_tcp_stream(*address) as stream:
                await stream.send_all(request("/metrics"))
                async for chunk in stream:
                    answer += chunk
        except OSError:
            answer = b""
        is_fine = answer.startswith(b"HTTP/1.1 200")
        seen.answers += is_fine
        seen.failed += not is_fine
        due += SCRAPE_INTERVAL_S
        await trio.sleep_until(due)


async def view(address: Address, seen: Seen) -> None:
    """Read the live stream, as the page does."""
    try:
        async with await trio.open_tcp_stream(*address) as stream:
            await stream.send_all(request("/v1/live"))
            tail = b""
            async for chunk in stream:
                found = tail + chunk
                seen.samples += found.count(SAMPLE)
                tail = found[-len(SAMPLE) + 1 :]
    except OSError:
        pass
    seen.failed += 1  # only this process ends it


async def never_read(address: Address, seen: Seen, sent: bytes) -> None:
    """Send something, and never read; reconnect when the connection ends."""
    while True:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
            client = trio.socket.from_stdlib_socket(sock)
            try:
                await client.connect(address)
                await client.send(sent)
                seen.answers += 1
                await trio.sleep(5)
            except OSError:
                seen.failed += 1
                await trio.sleep(0.1)


async def _run_viewers(address: Address, kind: str, count: int) -> None:
    seen = Seen()
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            if kind == STUCK:
                for sent in (request("/v1/live"), request("/metrics") * 50, b"GET /metr", b""):
                    nursery.start_soon(never_read, address, seen, sent)
            else:
                nursery.start_soon(scrape if kind == SCRAPE else view, address, seen)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()
    print(json.dumps(asdict(seen)), flush=True)


if __name__ == "__main__":
    trio.run(_run_viewers, (sys.argv[1], int(sys.argv[2])), sys.argv[3], int(sys.argv[4]))
