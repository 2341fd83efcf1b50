"""``presence serve`` with a fake server: its own Redis, logs, signals, exit statuses."""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import trustme
from structlog.testing import capture_logs

from presence.cli import serve
from presence.cli.main import main
from presence.cli.serve import _log_changes
from presence.config.loader import Settings, load
from presence.server.process import Lifecycle, Signals
from presence.store.embedded import embedded_redis
from presence.store.redis_client import open_client

pytestmark = pytest.mark.usefixtures("clean_environment")
DEADLINE_S = 20.0


Run = Callable[..., int]


@pytest.fixture
def serve_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Replace the server by a function."""

    def install(run: Run) -> None:
        module = ModuleType("presence.server.process")
        module.run, module.Signals = run, Signals  # type: ignore[attr-defined] # a module made by the test
        monkeypatch.setitem(sys.modules, "presence.server.process", module)

    return install


def test_a_failure_of_the_server_is_logged(
    serve_with: Callable[[Run], None], capfd: pytest.CaptureFixture[str]
) -> None:
    def run(_settings: Settings, _redis_url: str, _log: Lifecycle, **_: object) -> int:
        raise RuntimeError("out of order")

    serve_with(run)
    assert main(["serve", "--no-admin", "--port", "0", "--redis", "redis://h", "--log-format", "json"]) == 1
    entry = json.loads(capfd.readouterr().err)
    assert entry["event"] == "server failed"
    assert "RuntimeError: out of order" in entry["exception"]


@pytest.mark.parametrize(("flags", "warnings"), [(["--tls-port", "7999"], 1), ([], 0)])
def test_a_port_that_is_not_used_is_warned_of(
    serve_with: Callable[[Run], None],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    flags: list[str],
    warnings: int,
) -> None:
    certificate = tmp_path / "cert.pem"
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    serve_with(lambda *_args, **_options: 0)
    tls = ["--tls-cert", str(certificate), "--tls-only"]
    assert main(["serve", "--no-admin", "--port", "0", "--redis", "redis://h", *tls, *flags]) == 0
    assert capfd.readouterr().err.count("tls port not used") == warnings


def test_the_reason_why_its_redis_does_not_start_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with embedded_redis(tmp_path):
        assert main(["serve", "--no-admin", "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"presence: data_dir {tmp_path}: another presence server uses it\n"


def test_a_signal_before_the_server_is_ready_stops_its_own_redis_too(
    serve_with: Callable[[Run], None],
) -> None:
    urls: list[str] = []

    def run(_settings: Settings, redis_url: str, _log: Lifecycle, **_: object) -> int:
        urls.append(redis_url)
        with open_client(redis_url) as client:
            assert client.ping()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(DEADLINE_S)  # until the signal
        return 1

    serve_with(run)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["serve", "--no-admin"]) == 0
    assert not Path(urls[0].removeprefix("unix://")).exists()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("now", "level", "names"),
    [
        ({"tick": "2"}, "warning", ["tick"]),
        ({"redis": "redis://u:s3cret@h"}, "warning", ["redis"]),
        ({"tick": "x"}, "error", None),
        ({"config": "/nowhere"}, "error", None),
        ({}, None, None),
    ],
)
def test_settings_that_changed_at_a_hangup_are_named_without_their_values(
    now: dict[str, object], level: str | None, names: list[str] | None
) -> None:
    with capture_logs() as lines:
        _log_changes(load({}, {}).settings, lambda: load(now, {}))
    assert [line["log_level"] for line in lines] == ([level] if level else [])
    assert all(line.get("settings") == names and "s3cret" not in str(line) for line in lines)


def test_the_quick_start_has_websocket_on_loopback_and_another_port_if_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as owner, capture_logs() as lines:
        taken = owner.getsockname()[1]
        monkeypatch.setattr(serve, "QUICK_START_WS_PORT", taken)
        assert serve._with_quick_start(load({}, {})).ws_port == 0
        assert [line["address"] for line in lines] == [f"127.0.0.1:{taken}"]
    free = serve._with_quick_start(load({}, {}))
    assert (free.websocket_host, free.ws_port) == ("127.0.0.1", taken)


@pytest.mark.parametrize(
    "flags",
    [
        {"port": "0"},
        {"host": "127.0.0.2"},
        {"ws_port": "7777"},
        {"proxy_from": "10.0.0.0/8"},
        {"tls_cert": "c"},
    ],
    ids=lambda flags: next(iter(flags)),
)
def test_a_server_that_is_told_where_to_listen_has_no_websocket_unasked(flags: dict[str, object]) -> None:
    loaded = load(flags, {})
    assert serve._with_quick_start(loaded) == loaded.settings
