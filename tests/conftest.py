"""Fixtures that many tests share. Each test starts the servers that it needs."""

import gc
import logging
import os
import shutil
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from presence.store.embedded import EmbeddedRedis, embedded_redis

WORKERS = 4  # of the fast tier: some of its tests wait

settings.register_profile("fast", max_examples=30, derandomize=True, deadline=None)
settings.register_profile("system", max_examples=150, deadline=None, print_blob=True)
settings.load_profile("fast")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Spread the fast tier over processes; tests selected by name run in this one, and print."""
    return WORKERS if config.args_source is pytest.Config.ArgsSource.TESTPATHS else 0


def pytest_configure(config: pytest.Config) -> None:
    """Restore SIGINT, here and in child processes: a shell's background jobs ignore it.

    Hide the developer's own settings file from both. Children keep compiled modules, in pytest's cache if not
    beside the sources: each would compile all again, which is half of the start of a server.
    """
    os.environ["XDG_CONFIG_HOME"] = "/nonexistent"
    cache: pytest.Cache | None = getattr(config, "cache", None)
    if cache and os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ["PYTHONPYCACHEPREFIX"] = str(cache.mkdir("compiled"))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what lives to the end out of each garbage collection, which took an eighth of the time."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests whose command is missing, unless skipping is forbidden."""
    for marker in item.iter_markers("needs"):
        command = marker.args[0]
        if shutil.which(command) is None:
            if os.environ.get("TESTS_SKIP_NOTHING"):
                pytest.fail(f"{command} is not on PATH")
            pytest.skip(f"{command} is not on PATH")


@pytest.fixture
def redis_server() -> Iterator[EmbeddedRedis]:
    """A real, empty Valkey (or Redis) of this test; `.url` connects to it."""
    with embedded_redis() as server:
        yield server


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove settings and servers of the environment, and undo the logging that a command sets up."""
    for name in [name for name in os.environ if name.startswith("PRESENCE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("presence.cli.local_server.running_servers", list)
    monkeypatch.setattr("presence.config.loader.SYSTEM_FILE", Path("/nonexistent"))
    level = logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.setLevel(level)
    for handler in [h for h in logging.root.handlers if type(h).__module__ == "presence.common.logs"]:
        logging.root.removeHandler(handler)
