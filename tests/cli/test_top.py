"""``presence top`` against HTTP servers of the test."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio

from presence.cli.main import main
from presence.store.node_states import NodeState
from presence.top import feed
from presence.top.state import TopState
from tests.top.test_view import HELLO, event, sample, worker

pytestmark = pytest.mark.usefixtures("clean_environment")
SAMPLES = [("hello", HELLO), ("past", {"events": [event(1)]}), *[("sample", sample(worker()))] * 2]


class FakeServer(BaseHTTPRequestHandler):
    """Sends the messages of one connection, then closes it or holds it open, or refuses."""

    def __init__(
        self,
        requests: list[dict[str, str]],
        status: int,
        kind: str,
        sent: list[tuple[str, Any]],
        holds: bool,
        *args: Any,
    ) -> None:
        self._requests, self._status, self._kind, self._sent, self._holds = (
            requests,
            status,
            kind,
            sent,
            holds,
        )
        super().__init__(*args)

    def do_GET(self) -> None:
        self._requests.append({"path": self.path, **self.headers})
        self.send_response(self._status)
        self.send_header("Content-Type", self._kind)
        self.end_headers()
        messages = (f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in self._sent)
        with suppress(OSError):  # a client that is refused does not read on
            self.wfile.write("".join(messages).encode())
            if self._holds:
                self.rfile.read(1)  # until the client goes

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def http_server(
    requests: list[dict[str, str]],
    status: int = 200,
    kind: str = "text/event-stream",
    sent: Sequence[tuple[str, Any]] = SAMPLES,
    *,
    holds: bool = False,
) -> Iterator[str]:
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(FakeServer, requests, status, kind, [*sent], holds)
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_once_prints_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    requests: list[dict[str, str]] = []
    with http_server(requests) as url:
        assert main(["top", "--once", "--url", f"{url}/"]) == 0
    out, err = capsys.readouterr()
    assert "users online 12" in out
    assert "user-1  login" in out
    assert "\x1b" not in out
    assert err == ""
    assert [(each["path"], each.get("Authorization")) for each in requests] == [("/v1/live", None)]


@pytest.mark.parametrize("content", ["s3cret\n", "read ann s3cret\n"])
def test_the_token_comes_from_a_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    requests: list[dict[str, str]] = []
    with http_server(requests) as url:
        assert main(["top", "--once", "--url", url, "--token", f"@{file}"]) == 0
    assert requests[0]["Authorization"] == "Bearer s3cret"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"status": 401}, "it requires the token of an operator: --token @FILE"),
        ({"status": 503}, "it answers 503 Service Unavailable"),
        ({"kind": "text/html"}, "Expected response with content type 'text/event-stream'"),
    ],
)
def test_a_server_that_cannot_be_read_is_an_error(
    answer: dict[str, Any], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with http_server([], **answer) as url:
        assert main(["top", "--once", "--url", url]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"presence: cannot read {url}: {problem}")


@pytest.mark.parametrize(
    "sent",
    [
        ("sample", []),
        ("sample", {"at_ms": 1, "workers": [{"answering": True}]}),
        ("sample", {**sample(worker()), "wheel": {"slot_s": "x", "sizes": [1]}}),
        ("sample", {**sample(worker()), "nodes": [7]}),
        ("past", {"events": [7]}),
        ("past", {"events": [{"type": "gap", "dropped": "many", "id": "1-0"}]}),
    ],
)
def test_a_server_that_sends_what_cannot_be_shown_is_an_error(
    sent: tuple[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with http_server([], sent=[*SAMPLES[:3], sent]) as url:
        assert main(["top", "--once", "--url", url]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"presence: cannot read {url}: it is no presence server of this version\n"


def test_a_server_that_sends_no_sample_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(feed, "FIRST_SAMPLE_TIMEOUT_S", 0.2)
    with http_server([], sent=SAMPLES[:2], holds=True) as url:
        assert main(["top", "--once", "--url", url]) == 1
    assert capsys.readouterr().err == f"presence: cannot read {url}: it sends no data\n"


def test_thousands_of_nodes_and_large_events_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        NodeState(node=f"node-{n:012x}", status="alive", lease_left_s=5.0, sweeper=None, readiness="ready")
        for n in range(4000)
    ]
    large = [event(number, devices="x" * 25_000) for number in range(50)]
    sent = [("hello", HELLO), ("past", {"events": large}), *[("sample", sample(worker(), nodes=nodes))] * 2]
    with http_server([], sent=sent) as url:
        assert main(["top", "--once", "--url", url]) == 0
    out, _ = capsys.readouterr()
    assert "and 3," in out
    assert "user-49  login" in out


def test_no_server_and_an_unreadable_token_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with http_server([]) as url:
        pass
    assert main(["top", "--once", "--url", url]) == 1
    assert main(["top", "--once", "--url", url, "--token", "@/nowhere"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"presence: cannot read {url}: ")
    assert "No such file or directory: '/nowhere'" in second


def test_without_a_terminal_it_asks_for_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 2
    assert "needs a terminal; give --once" in capsys.readouterr().err


async def test_it_connects_again_when_the_stream_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "RETRY_FIRST_S", 0.01)
    requests: list[dict[str, str]] = []
    with http_server(requests) as url:
        state, lost = TopState(url), trio.Event()

        def sampled() -> None:
            if len(requests) == 3:
                lost.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed.read_feed, state, str, sampled)
            with trio.fail_after(20):
                await lost.wait()
            nursery.cancel_scope.cancel()
    assert "connection lost: events may be missing here" in state.events
