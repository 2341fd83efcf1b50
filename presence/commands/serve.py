"""``presence serve``: the server, and a Redis of its own where none is given."""

import contextlib
from collections.abc import Callable

from presence.commands.outcome import FAILED, OK, complain, sighup_ignored, sigterm_interrupts
from presence.config import DEFAULT_SOURCE, Loaded
from presence.embedded import EmbeddedError, embedded_redis
from presence.exposure import exposures
from presence.logs import configure, configure_directly
from presence.notifying import Notifier, from_environment
from presence.settings import Settings

Reread = Callable[[], None]


def run(loaded: Loaded, load_again: Callable[[], Loaded]) -> int:
    """Serve until a signal comes.

    Args:
        loaded: the settings.
        load_again: loads them as they are later, for SIGHUP.

    Returns:
        The exit status.
    """
    settings = loaded.settings

    def reread() -> None:
        from presence.rereading import tell_changes  # noqa: PLC0415 - after `configure`

        tell_changes(settings, load_again)

    notifier = from_environment()  # before anything is started that would inherit what leads to it
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(sigterm_interrupts())
        cleanup.enter_context(sighup_ignored())
        try:
            redis_url = settings.redis
            if redis_url is None:
                # First, while this process has one thread; stopped last, when everything is written.
                redis_url = cleanup.enter_context(embedded_redis(settings.data_dir)).url
            serve = _serve_alone if settings.workers == 1 else _supervise
            return serve(settings, redis_url, reread, notifier)
        except EmbeddedError as error:
            complain(error)
            return FAILED
        except KeyboardInterrupt:  # before the server took the signals over
            return OK


def _serve_alone(settings: Settings, redis_url: str, reread: Reread, notifier: Notifier) -> int:
    with configure(settings.log_format, settings.log_level) as writer:
        _tell_first(settings, redis_url)
        from presence.process import Signals, run  # noqa: PLC0415 - trio and all rooms of the server

        return _logged(lambda: run(settings, redis_url, Signals(writer, reread, notifier)))


def _supervise(settings: Settings, redis_url: str, reread: Reread, notifier: Notifier) -> int:
    writer = configure_directly(settings.log_format, settings.log_level)
    _tell_first(settings, redis_url)
    from presence.supervisor import run  # noqa: PLC0415 - loads what the workers share

    return _logged(lambda: run(settings, redis_url, writer, reread, notifier))


def _tell_first(settings: Settings, url: str) -> None:
    import structlog  # noqa: PLC0415 - after `configure`, which loads it without rich

    if settings.redis is None:
        structlog.get_logger().info("embedded Redis runs", url=url)
    for exposure in exposures(settings):
        structlog.get_logger().warning(exposure)


def _logged(run: Callable[[], int]) -> int:
    import structlog  # noqa: PLC0415 - after `configure`, which loads it without rich

    try:
        return run()
    except Exception:
        structlog.get_logger().exception("server failed")
        return FAILED
