"""A forked server is as one that a command has started."""

import signal
import subprocess

import pytest

from presence.store.embedded import EmbeddedRedis
from tests.support.preloaded import ForkedProcess, PreloadedServer


def test_it_serves_is_signalled_and_ends_with_its_status(redis_server: EmbeddedRedis) -> None:
    with PreloadedServer("--redis", redis_server.url) as server:
        process: object = server.process
        assert isinstance(process, ForkedProcess)
        assert server.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.1)
        assert server.stop() == server.process.poll() == 0
        assert server.report["left_in_outbox"] == 0


def test_its_death_is_reported(redis_server: EmbeddedRedis) -> None:
    with PreloadedServer("--redis", redis_server.url) as server:
        server.process.kill()
        assert server.process.wait(5) == -signal.SIGKILL


def test_its_refusal_to_start_is_reported() -> None:
    with pytest.raises(RuntimeError, match="did not become ready"):
        PreloadedServer("--tick", "never")


def test_another_environment_has_a_process_of_its_own(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    with PreloadedServer("--redis", redis_server.url) as server:
        assert isinstance(server.process, subprocess.Popen)
