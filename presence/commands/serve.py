"""``presence serve``: the server, and a Redis of its own where none is given."""

import contextlib

from presence.commands.outcome import FAILED, OK, complain, sigterm_interrupts
from presence.config import Settings
from presence.embedded import EmbeddedError, embedded_redis
from presence.logs import LogWriter, configure


def run(settings: Settings) -> int:
    """Serve until a signal comes; return the exit status."""
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(sigterm_interrupts())
        try:
            redis_url = settings.redis
            if redis_url is None:
                # First, while this process has one thread; stopped last, when everything is written.
                redis_url = cleanup.enter_context(embedded_redis(settings.data_dir)).url
            log = cleanup.enter_context(configure(settings.log_format, settings.log_level))
            if settings.redis is None:
                _tell_where(redis_url)
            return _serve(settings, redis_url, log)
        except EmbeddedError as error:
            complain(error)
            return FAILED
        except KeyboardInterrupt:  # before the server took the signals over
            return OK


def _tell_where(url: str) -> None:
    import structlog  # noqa: PLC0415 - after `configure`, which needs it as well

    structlog.get_logger().info("embedded Redis runs", url=url)


def _serve(settings: Settings, redis_url: str, log: LogWriter) -> int:
    import structlog  # noqa: PLC0415 - after `configure`, which needs it as well

    from presence.server import run as run_server  # noqa: PLC0415 - trio and all rooms of the server

    try:
        return run_server(settings, redis_url, log)
    except Exception:
        structlog.get_logger().exception("server failed")
        return FAILED
