"""Fixtures that many tests share. Each test starts the servers that it needs."""

import contextlib
import gc
import importlib
import logging
import os
import shutil
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from presence.store.embedded import EmbeddedRedis, embedded_redis

SYSTEM = Path(__file__).parent / "system"
WORKERS = 3  # of the fast tier: some of its tests wait, and each worker collects all of them

# Tests that need more or fewer examples take a multiple of the profile's.
settings.register_profile("fast", max_examples=15, derandomize=True, deadline=None)
settings.register_profile("system", max_examples=150, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("TESTS_EXAMPLES", "fast"))  # .ci/nightly takes "system"


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Spread the fast tier over processes; tests selected by name run in this one, and print."""
    return WORKERS if config.args_source is pytest.Config.ArgsSource.TESTPATHS else 0


def pytest_configure() -> None:
    """Restore SIGINT, here and in child processes: a shell's background jobs ignore it.

    Hide the developer's own settings file from both. Both keep compiled modules beside the sources, whatever
    the environment says: without them each child would compile all again, which is half of the start of a
    server, and a folder elsewhere would lack those of Python and of the packages.
    """
    os.environ["XDG_CONFIG_HOME"] = "/nonexistent"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    log_plainly()


def log_plainly() -> None:
    """Log as structlog does by default, but draw no tracebacks: that takes longer than many tests."""
    structlog.reset_defaults()
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])


def import_test_modules(arguments: list[str], worker: int, workers: int) -> None:
    """Import the modules of tests below these folders; each worker starts at another one.

    Workers that collect the same modules side by side compile each of them several times. So each compiles
    a part of them, and finds the others in the cache.
    """
    folders = [folder for folder in map(Path, arguments) if folder.is_dir()]
    files = sorted({file.resolve() for folder in folders for file in folder.rglob("test_*.py")})
    if not any(SYSTEM in (path, *path.parents) for path in (folder.resolve() for folder in folders)):
        files = [file for file in files if SYSTEM not in file.parents]
    start = worker * len(files) // workers
    for file in files[start:] + files[:start]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection tells of it
            importlib.import_module(".".join(file.with_suffix("").relative_to(SYSTEM.parent.parent).parts))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep what lives to the end out of each garbage collection, which took an eighth of the time."""
    gc.disable()
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        import_test_modules(session.config.args, int(worker.removeprefix("gw")), count)
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
    log_plainly()
    logging.root.setLevel(level)
    for handler in [h for h in logging.root.handlers if type(h).__module__ == "presence.common.logs"]:
        logging.root.removeHandler(handler)
