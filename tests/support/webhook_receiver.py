"""A receiver of webhooks for tests: checks signatures, records what it accepts, and fails on demand."""

import argparse
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from presence.webhooks import SIGNATURE_HEADER, SignatureError, verify

Event = dict[str, Any]


@dataclass
class WebhookReceiver:
    """Accepts requests while it runs.

    Attributes:
        secret: of the signatures.
        answer: gives the status of a request by its events; it may wait.
        accepted: the events of each request that was accepted.
        refused: number of requests with a wrong signature.
        url: where it listens.
    """

    secret: bytes
    answer: Callable[[list[Event]], int] = lambda _events: 200
    on_accepted: Callable[[list[Event]], None] = lambda _events: None
    accepted: list[list[Event]] = field(default_factory=list)
    refused: int = 0
    url: str = ""

    @property
    def uids(self) -> list[str]:
        """The users of the accepted events, in order."""
        return [str(event.get("uid", event["type"])) for events in self.accepted for event in events]

    @contextmanager
    def running(self, port: int = 0) -> Iterator[None]:
        """Listen on loopback."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(receiver._receive(self.headers.get(SIGNATURE_HEADER, ""), body))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128

            def handle_error(self, *_: object) -> None:
                """The client hung up, which some tests are about."""

        with Server(("127.0.0.1", port), Handler) as server:
            self.url = f"http://127.0.0.1:{server.server_port}/events"
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()

    def _receive(self, signature: str, body: bytes) -> int:
        try:
            verify(signature, body, self.secret)
        except SignatureError:
            self.refused += 1
            return 401
        events: list[Event] = json.loads(body)["events"]
        status = self.answer(events)
        if status == 200:
            self.accepted.append(events)
            self.on_accepted(events)
        return status


def main() -> None:
    """Run as a program of its own, which can be killed; accepted events are appended to a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--secret", required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--fail", type=float, default=0.0, help="share of requests answered with 500")
    parser.add_argument("--hang", type=float, default=0.0, help="share of requests without an answer")
    parser.add_argument("--hang-s", type=float, default=10.0)
    options = parser.parse_args()
    chance, lock = random.Random(), threading.Lock()

    def answer(_events: list[Event]) -> int:
        drawn = chance.random()
        if drawn < options.hang:
            time.sleep(options.hang_s)
            return 503
        return 500 if drawn < options.hang + options.fail else 200

    with options.log.open("a") as log:

        def keep(events: list[Event]) -> None:
            with lock:
                log.write(json.dumps([[each["shard"], each["id"], each["uid"]] for each in events]) + "\n")
                log.flush()

        with WebhookReceiver(options.secret.encode(), answer, keep).running(options.port):
            threading.Event().wait()


if __name__ == "__main__":
    main()
