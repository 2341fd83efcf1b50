"""``python -m examples.push_sender``: a push notification for a user whose phone fell silent.

The phone gives its push token as `private` when it logs in: other users do not see it, the offline event has
it. So the receiver of the webhooks needs no database. `presence webhooks run` repeats what the receiver did
not accept, and each event has an id: one that was handled already is skipped.
"""

import asyncio
import json
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response

from examples.local_server import LocalServer, local_server, needed
from presence.client import connect
from presence.webhooks import SIGNATURE_HEADER, SignatureError, verify

PORT = 8001
SILENT = {"idle_timeout", "closed", "node_down"}  # reasons of users who did not log out themselves


def make_receiver(secret: bytes) -> FastAPI:
    """Return the application that `presence webhooks run` sends events to."""
    app, handled = FastAPI(), set[tuple[int, str]]()

    @app.post("/events")
    async def receive(request: Request) -> Response:
        body = await request.body()
        try:
            verify(request.headers.get(SIGNATURE_HEADER, ""), body, secret)
        except SignatureError:
            return Response(status_code=401)
        for event in json.loads(body)["events"]:
            if event["type"] != "offline" or event["reason"] not in SILENT:
                continue  # also a gap: who went offline meanwhile is not known
            place = event["shard"], event["id"]  # a real receiver keeps these in its database
            token = event.get("private", {}).get("push")
            if token is not None and place not in handled:  # else the device takes no push notifications
                print(f"push to {event['uid']}, token {token}: you have gone offline", flush=True)
            handled.add(place)  # only now: what fails before is sent again
        return Response(status_code=204)

    return app


async def be_a_phone(server: LocalServer) -> None:
    """Log in, and lose the network: from then on nothing is sent."""
    async with connect(server.host, server.port, uid="ann", private={"push": "token-of-ann"}):
        print("ann is online, and her phone is about to die", flush=True)
        await asyncio.sleep(1)
        raise ConnectionError("no network")  # leaves the block without a logout


async def serve(server: LocalServer, secret: bytes) -> None:
    """Run the receiver and the phone until the push was sent, then go on."""
    receiver = uvicorn.Server(uvicorn.Config(make_receiver(secret), port=PORT, log_level="warning"))
    serving = asyncio.create_task(receiver.serve())
    try:
        await be_a_phone(server)
    except ConnectionError:
        print("ann's connection is lost; she may return within the grace", flush=True)
    await serving


def main() -> None:
    secret = secrets.token_hex(32)
    with tempfile.TemporaryDirectory() as folder, local_server("--disconnect-grace", "2") as server:
        file = Path(folder) / "webhook.secret"
        file.write_text(secret)
        file.chmod(0o600)
        # With all events that there are: the phone may fall silent before the runner has begun.
        options = ["--redis", server.redis_url, "--url", f"http://127.0.0.1:{PORT}/events", "--after", "0"]
        runner = [sys.executable, "-m", "presence", "webhooks", "run", *options, "--secret-file", str(file)]
        with needed(subprocess.Popen([*runner, "--types", "offline"]), "presence webhooks run"):
            asyncio.run(serve(server, secret.encode()))


if __name__ == "__main__":
    main()
