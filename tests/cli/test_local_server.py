"""Commands that are given no server use the one that runs on this machine; the default settings file."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from presence.cli.main import main
from presence.config.settings import Settings
from presence.server.running_servers import Announcement, RunningServer, running_servers
from presence.store.embedded import EmbeddedRedis

Announce = Callable[..., Announcement]


@pytest.fixture(autouse=True)
def folder(clean_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The system's directory for temporary files, which no other server uses."""
    monkeypatch.setattr("presence.cli.local_server.running_servers", running_servers)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("presence.common.runtime_dir.SERVICE_DIRECTORY", tmp_path / "none")
    return tmp_path


@pytest.fixture
def announce() -> Iterator[Announce]:
    """Announces a server until the end of the test."""
    with ExitStack() as cleanup:

        def announce(
            redis_url: str, port: int = 7400, host: str = "127.0.0.1", prefix: str = "presence"
        ) -> Announcement:
            announcement = Announcement(Settings(prefix=prefix), redis_url, "http://127.0.0.1:7480/")
            announcement(host, port)
            cleanup.callback(announcement.withdraw)
            return announcement

        yield announce


def test_a_server_is_known_to_its_user_until_it_withdraws(folder: Path, announce: Announce) -> None:
    announcement = announce("redis://:s3cret@h", 7401, "0.0.0.0", prefix="chat")
    url = "http://127.0.0.1:7480/"
    assert running_servers() == [
        RunningServer(os.getpid(), "127.0.0.1", 7401, url, "redis://:s3cret@h", "chat")
    ]
    (file,) = folder.glob("*/server.json")
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    announcement.withdraw()
    assert running_servers() == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"pid": 1, "of": "another version"}', "\xff"])
def test_a_file_that_cannot_be_understood_is_ignored(folder: Path, announce: Announce, content: str) -> None:
    announce("redis://h")
    (file,) = folder.glob("*/server.json")
    file.write_text(content, "latin-1")
    assert running_servers() == []


def test_a_server_that_cannot_be_announced_serves(
    announce: Announce, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "missing"))
    announce("redis://h").withdraw()


def test_a_command_says_which_server_it_uses(
    redis_server: EmbeddedRedis, announce: Announce, capsys: pytest.CaptureFixture[str]
) -> None:
    announce(redis_server.url, prefix="chat")
    assert main(["nodes"]) == 0
    out, err = capsys.readouterr()
    assert out == "no nodes: no server has a lease in this Redis under the prefix chat\n"
    assert err == f"presence: using the server at 127.0.0.1:7400 (process {os.getpid()})\n"
    assert main(["nodes", "--prefix", "game"]) == 0
    assert "under the prefix game" in capsys.readouterr().out


def test_servers_of_one_redis_are_one_choice(redis_server: EmbeddedRedis, announce: Announce) -> None:
    announce(redis_server.url, 7400)
    announce(redis_server.url, 7401)
    assert main(["status", "--count"]) == 0


def test_several_servers_are_listed_without_passwords(
    announce: Announce, capsys: pytest.CaptureFixture[str]
) -> None:
    announce("redis://:s3cret@a", 7400)
    announce("redis://b", 7401, prefix="chat")
    assert main(["status", "--count"]) == 2
    first, *listed = capsys.readouterr().err.splitlines()
    assert "give --redis URL or PRESENCE_REDIS (several servers run here)" in first
    process = f"(process {os.getpid()})"
    assert listed == [
        f"presence:   127.0.0.1:7400 {process}: --redis redis://:***@a --prefix presence",
        f"presence:   127.0.0.1:7401 {process}: --redis redis://b --prefix chat",
    ]
    assert main(["client", "ann"]) == 2
    assert "--host 127.0.0.1 --port 7401" in capsys.readouterr().err


def test_without_a_server_the_command_asks_for_a_redis(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--count"]) == 2
    wanted = "status needs the servers' Redis: give --redis URL or PRESENCE_REDIS"
    assert capsys.readouterr().err == f"presence: {wanted} (no server of this user runs here)\n"


def test_the_user_s_settings_file_comes_before_the_system_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown() -> str:
        assert main(["config", "show"]) == 0
        return capsys.readouterr().out

    system, own = tmp_path / "system.toml", tmp_path / "home" / "presence" / "presence.toml"
    monkeypatch.setattr("presence.config.loader.SYSTEM_FILE", system)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    assert shown().startswith("# settings file: none\n")
    system.write_text("tick = 2")
    assert shown().startswith(f"# settings file: {system}\n")
    own.parent.mkdir(parents=True)
    own.write_text("tick = 3")
    assert "tick = 3.0" in shown()
    monkeypatch.setenv("PRESENCE_CONFIG", os.devnull)
    assert "tick = 1.0" in shown()
