"""The command line, as it is typed: exit statuses, what is printed where, and what happens on a signal."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import structlog

from presence import __version__
from presence.cli import main
from presence.config import Settings
from presence.embedded import EmbeddedRedis, embedded_redis
from presence.logs import LogWriter
from presence.store.client import Redis, open_client

pytestmark = pytest.mark.usefixtures("_clean_environment")
DEADLINE_S = 20.0
UNREACHABLE = "redis://user:s3cret@127.0.0.1:1"


@pytest.fixture
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("PRESENCE_")]:
        monkeypatch.delenv(name)
    yield
    structlog.reset_defaults()


Run = Callable[[Settings, str, LogWriter], int]


@pytest.fixture
def serve_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Put a function in the place of the server."""

    def install(run: Run) -> None:
        module = ModuleType("presence.server")
        module.run = run  # type: ignore[attr-defined] # a module made here
        monkeypatch.setitem(sys.modules, "presence.server", module)

    return install


def shown(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(["config", "show", "--json", *flags]) == 0
    rows: dict[str, Any] = json.loads(capsys.readouterr().out)
    return rows


@pytest.mark.parametrize(
    ("flag", "value", "key", "meant"),
    [
        ("--host", "::1", "host", "::1"),
        ("--port", "0", "port", 0),
        ("--workers", "1", "workers", 1),
        ("--redis", "redis://h:6380/1", "redis", "redis://h:6380/1"),
        ("--redis", "rediss://h", "redis", "rediss://h"),
        ("--redis", "unix:///r.sock", "redis", "unix:///r.sock"),
        ("--prefix", "other", "prefix", "other"),
        ("--data-dir", "data", "data_dir", "data"),
        ("--idle-timeout", "3", "idle_timeout", 3.0),
        ("--tick", "0.5", "tick", 0.5),
        ("--disconnect-grace", "0", "disconnect_grace", 0.0),
        ("--drain-timeout", "2.5", "drain_timeout", 2.5),
        ("--no-admin", None, "no_admin", True),
        ("--insecure", None, "insecure", True),
        ("--no-stall-guard", None, "stall_guard", False),
        ("--log-format", "console", "log_format", "console"),
        ("--log-format", "json", "log_format", "json"),
    ],
)
def test_flag_sets_its_setting(
    flag: str, value: str | None, key: str, meant: object, capsys: pytest.CaptureFixture[str]
) -> None:
    row = shown(capsys, flag) if value is None else shown(capsys, f"{flag}={value}")
    assert row[key]["value"] == meant


def test_config_names_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.toml"
    file.write_text("tick = 2")
    assert shown(capsys, "--config", str(file))["tick"] == {"value": 2.0, "source": f"file {file}"}


def test_config_show_prints_what_a_file_could_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.toml"
    # An admin address that is named asks for an HTTP server, so one line is left out.
    main(["config", "show", "--tick", "2", "--log-level", "debug"])
    text = capsys.readouterr().out
    file.write_text("".join(line for line in text.splitlines(True) if not line.startswith("admin")))
    rows = shown(capsys, "--config", str(file))
    assert (rows["tick"]["value"], rows["log_level"]["value"]) == (2.0, "debug")


def test_config_show_hides_the_password(capsys: pytest.CaptureFixture[str]) -> None:
    main(["config", "show", "--redis", UNREACHABLE])
    out = capsys.readouterr().out
    assert "redis://user:***@127.0.0.1:1" in out
    assert "s3cret" not in out


def test_config_check_accepts_what_is_sound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--tick", "2"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "command", [["config", "check"], ["config", "show"], ["serve"], ["tail"], ["status", "u"]]
)
def test_bad_environment_is_a_configuration_error_everywhere(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRESENCE_TIK", "1")
    monkeypatch.setenv("PRESENCE_TICK", "x\x1b")
    assert main(command) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("presence: 'PRESENCE_TIK': unknown variable; did you mean PRESENCE_TICK?")
    assert lines[1].startswith("presence: tick: must be")
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["serve", "--idle-timout", "3"], "did you mean --idle-timeout?"),
        (["serve", "--idle", "3"], "unknown argument: '--idle'"),
        (["serve", "--admin", "h:1", "--no-admin"], "not allowed with"),
        (["serve", "--workers", "2"], "later version"),
        (["serve", "--admin", "127.0.0.1:7480"], "later version"),
        (["serve", "--redis", "redis+cluster://h"], "later"),
        (["tail", "--redis", UNREACHABLE, "--group", "g"], "--group comes with a later version"),
        (["tail", "--redis", UNREACHABLE, "--consumer", "c"], "--consumer comes with a later version"),
        (["tail", "--redis", UNREACHABLE, "--from", "yesterday"], "'yesterday' is no entry id"),
        (["tail", "--redis", UNREACHABLE, "--type", "away"], "invalid choice: 'away'"),
        (["tail"], "give --redis URL"),
        (["status", "--redis", UNREACHABLE, "--count"], "--count comes with a later version"),
        (["status", "--redis", UNREACHABLE, "--list"], "--list comes with a later version"),
        (["status", "--redis", UNREACHABLE], "name at least one uid"),
        (["status", "--redis", UNREACHABLE, "a\x1bb"], r"uid 'a\x1bb'"),
        (["status", "--redis", UNREACHABLE, "a\udcffb"], r"uid 'a\udcffb'"),
    ],
)
def test_usage_error_says_what_is_wrong(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"presence {__version__}\n"


@pytest.mark.parametrize(
    "command", [["serve"], ["tail"], ["status"], ["config", "show"], ["config", "check"]]
)
def test_every_command_has_help_and_takes_what_all_take(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert all(flag in text for flag in ("--redis", "--prefix", "--config"))


def test_help_loads_neither_redis_nor_trio() -> None:
    program = "import sys\nfrom presence.cli import main\nmain(['--help'])\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"redis", "trio", "structlog"}.isdisjoint(done.stdout.split())


def test_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "presence", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"presence {__version__}\n"


# --- serve


def test_serve_hands_settings_and_redis_to_the_server(serve_with: Callable[[Run], None]) -> None:
    seen: list[tuple[Settings, str]] = []

    def run(settings: Settings, redis_url: str, _log: LogWriter) -> int:
        seen.append((settings, redis_url))
        return 0

    serve_with(run)
    assert main(["serve", "--port", "0", "--redis", "redis://h"]) == 0
    assert seen == [(Settings(port=0, redis="redis://h"), "redis://h")]


def test_serve_starts_a_redis_of_its_own_and_stops_it_last(serve_with: Callable[[Run], None]) -> None:
    urls: list[str] = []

    def run(_settings: Settings, redis_url: str, _log: LogWriter) -> int:
        urls.append(redis_url)
        with open_client(redis_url) as client:
            assert client.ping()
        return 0

    serve_with(run)
    assert main(["serve"]) == 0
    assert not Path(urls[0].removeprefix("unix://")).exists()


def test_serve_prints_ready_alone_on_a_line(
    serve_with: Callable[[Run], None], capfd: pytest.CaptureFixture[str]
) -> None:
    def run(_settings: Settings, _redis_url: str, log: LogWriter) -> int:
        structlog.get_logger().info("accepting")
        log.raw_line("ready 127.0.0.1:7400")
        return 0

    serve_with(run)
    main(["serve", "--redis", "redis://h"])
    assert capfd.readouterr().err.splitlines()[1] == "ready 127.0.0.1:7400"


def test_serve_returns_the_status_of_the_server(serve_with: Callable[[Run], None]) -> None:
    serve_with(lambda _settings, _url, _log: 1)
    assert main(["serve", "--redis", "redis://h"]) == 1


def test_serve_logs_a_failure_of_the_server(
    serve_with: Callable[[Run], None], capfd: pytest.CaptureFixture[str]
) -> None:
    def run(_settings: Settings, _redis_url: str, _log: LogWriter) -> int:
        raise RuntimeError("out of order")

    serve_with(run)
    assert main(["serve", "--redis", "redis://h", "--log-format", "json"]) == 1
    entry = json.loads(capfd.readouterr().err)
    assert entry["event"] == "server failed"
    assert "RuntimeError: out of order" in entry["exception"]


def test_serve_says_why_its_redis_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with embedded_redis(tmp_path):
        assert main(["serve", "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"presence: data_dir {tmp_path}: another presence server uses it\n"


def test_signal_before_the_server_handles_it_is_a_clean_stop(serve_with: Callable[[Run], None]) -> None:
    urls: list[str] = []

    def run(_settings: Settings, redis_url: str, _log: LogWriter) -> int:
        urls.append(redis_url)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(DEADLINE_S)  # which the signal ends
        return 1

    serve_with(run)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["serve"]) == 0
    assert not Path(urls[0].removeprefix("unix://")).exists()
    assert signal.getsignal(signal.SIGTERM) is before


# --- status


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[Redis]:
    with open_client(redis_server.url) as client:
        yield client


def put_alice_online(client: Redis, prefix: str = "presence") -> None:
    session = {"session": "s1", "node": "n1", "generation": 1, "login_ms": 1_700_000_000_000}
    record = {"id": "5-1", "since_ms": 1_700_000_000_000, "sessions": {"phone": session}}
    client.hset(f"{prefix}:{{0}}:online", "alice", json.dumps(record))


def test_status_prints_a_line_for_each_user(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    put_alice_online(client)
    client.zadd("presence:{0}:seen", {"bob": 1_700_000_060_000})
    assert main(["status", "alice", "bob", "nobody", "--redis", redis_server.url]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "alice   online   since 2023-11-14 22:13:20 UTC  phone on n1",
        "bob     offline  last seen 2023-11-14 22:14:20 UTC",
        "nobody  offline  never seen, or long ago",
    ]


def test_status_as_json_is_an_object_of_states(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    put_alice_online(client, "other")
    assert main(["status", "--json", "alice", "--redis", redis_server.url, "--prefix", "other"]) == 0
    state = json.loads(capsys.readouterr().out)["alice"]
    session = {"device": "phone", "session": "s1", "node": "n1", "login_ms": 1_700_000_000_000}
    assert (state["status"], state["id"], state["sessions"]) == ("online", "5-1", [session])


def test_status_looks_into_the_shards_that_the_server_stored(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    client.hset("presence:meta", "shards", 16)
    client.zadd("presence:{3}:seen", {"carol": 1_700_000_000_000})  # CRC-32 of carol, modulo 16
    main(["status", "carol", "--redis", redis_server.url])
    assert "last seen 2023" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["status", "u"], ["tail"]])
def test_unreachable_redis_is_named_without_its_password(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--redis", UNREACHABLE]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("presence: cannot reach Redis at redis://user:***@127.0.0.1:1")
    assert "s3cret" not in line


# --- tail


def event(client: Redis, entry_id: str, kind: str = "online", **fields: str | int) -> None:
    values: dict[Any, Any] = {
        "v": 1,
        "type": kind,
        "uid": "u",
        "code": 1,
        "at_ms": 1_700_000_000_123,
        **fields,
    }
    client.xadd("presence:{0}:events", values, id=entry_id)


class Tail:
    """A running ``presence tail``."""

    def __init__(self, url: str, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "presence", "tail", "--redis", url, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def complaint(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def wait_until_reading(self, client: Redis) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not any(peer["cmd"] == "xread" for peer in client.client_list()):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def tail() -> Iterator[Callable[..., Tail]]:
    running: list[Tail] = []

    def start(url: str, *flags: str) -> Tail:
        running.append(Tail(url, *flags))
        return running[-1]

    yield start
    for one in running:
        one.process.kill()
        one.process.communicate()


StartTail = Callable[..., Tail]


def test_tail_prints_only_new_events_as_json(
    redis_server: EmbeddedRedis, client: Redis, tail: StartTail
) -> None:
    event(client, "1-0")
    running = tail(redis_server.url, "--json")
    running.wait_until_reading(client)
    event(client, "2-0", since_ms=5, session="7")
    assert json.loads(running.line()) == {
        "id": "2-0",
        "shard": 0,
        "v": 1,
        "type": "online",
        "uid": "u",
        "code": 1,
        "at_ms": 1_700_000_000_123,
        "since_ms": 5,
        "session": "7",
    }


def test_tail_from_zero_prints_what_is_kept_of_all_shards(
    redis_server: EmbeddedRedis, client: Redis, tail: StartTail
) -> None:
    client.hset("presence:meta", "shards", 2)
    event(client, "1-0")
    client.xadd("presence:{1}:events", {"type": "gap", "dropped": 3}, id="2-0")
    event(client, "3-0")
    running = tail(redis_server.url, "--json", "--from", "0")
    lines = [json.loads(running.line()) for _ in range(3)]
    assert [(line["shard"], line["id"]) for line in lines] == [(0, "1-0"), (1, "2-0"), (0, "3-0")]
    assert lines[1]["dropped"] == 3


def test_tail_prints_the_type_asked_for(redis_server: EmbeddedRedis, client: Redis, tail: StartTail) -> None:
    event(client, "1-0", "online")
    event(client, "2-0", "offline")
    assert json.loads(tail(redis_server.url, "--json", "--from=0", "--type=offline").line())["id"] == "2-0"


def test_tail_for_a_person_escapes_control_characters(
    redis_server: EmbeddedRedis, client: Redis, tail: StartTail
) -> None:
    event(client, "1-0", "offline", uid="u\x1b[2J\nforged", device="d", reason="idle_timeout", node="n1")
    line = tail(redis_server.url, "--from", "0").line()
    assert line.split() == [
        *("2023-11-14", "22:13:20.123", "offline", "idle_timeout"),
        *(r"u\x1b[2J\nforged", "(d)", "1-0", "n1"),
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_tail_ends_well_on_a_signal(
    redis_server: EmbeddedRedis, client: Redis, tail: StartTail, number: int
) -> None:
    running = tail(redis_server.url)
    running.wait_until_reading(client)
    assert running.stop(number) == 0
    assert running.complaint() == ""


@pytest.mark.parametrize("more", [True, False], ids=["with more to print", "while nothing happens"])
def test_tail_ends_quietly_when_nobody_reads(
    redis_server: EmbeddedRedis, client: Redis, tail: StartTail, more: bool
) -> None:
    event(client, "1-0")
    running = tail(redis_server.url, "--from", "0")
    assert running.line()
    running.wait_until_reading(client)
    assert running.process.stdout is not None
    running.process.stdout.close()
    if more:
        event(client, "2-0")
    assert running.process.wait(DEADLINE_S) == 0
    assert running.complaint() == ""
    running.process.stdout = None


def test_tail_goes_on_after_redis_was_restarted(tmp_path: Path, tail: StartTail) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    extra = ("--port", str(port), "--bind", "127.0.0.1")
    url = f"redis://127.0.0.1:{port}"
    with embedded_redis(tmp_path, extra), open_client(url) as client:
        event(client, "1-0")
        running = tail(url, "--json", "--from", "0")
        assert json.loads(running.line())["id"] == "1-0"
    assert running.complaint().startswith(f"presence: lost Redis at {url}, trying again: ")
    with embedded_redis(tmp_path, extra), open_client(url) as client:
        event(client, "2-0")
        assert json.loads(running.line())["id"] == "2-0"
        assert running.complaint() == f"presence: Redis at {url} is back\n"
        assert running.stop() == 0
