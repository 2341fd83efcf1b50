"""``presence serve``: runs the server, with an embedded Redis if none is given."""

import argparse
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING

from presence.cli.errors import (
    FAILED,
    OK,
    print_error,
    sighup_ignored,
    sigterm_interrupts,
    silence_finalizers,
)
from presence.cli.options import Load, add_settings
from presence.common.logs import DirectWriter, LogWriter, configure, configure_directly
from presence.common.scarcity import scarcity
from presence.config.loader import DEFAULT_SOURCE, FIELDS, ConfigError, Loaded, exposures
from presence.config.settings import QUICK_START_WS_PORT, Settings
from presence.prefork.systemd import Notifier, from_environment
from presence.store.embedded import LOADING_REPORT_S, EmbeddedError, EmbeddedRedis, embedded_redis

if TYPE_CHECKING:  # a server with --no-admin loads nothing of it
    from presence.admin.launcher import AdminProcess
    from presence.server.embedded_supervisor import EmbeddedSupervisor

# While all of these have their defaults, WebSocket is served, too.
_LISTENING = ("host", "port", "ws_host", "ws_port", "tls_cert", "proxy_from")
_DESCRIPTION = (
    "Without --redis the server starts a private Valkey and stops it last. Every flag is also an environment "
    "variable (--idle-timeout: PRESENCE_IDLE_TIMEOUT) and a key of the file (idle_timeout)."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    add_settings(parser, tuple(FIELDS))


def check_files(loaded: Loaded) -> None:
    """Check that the files named by settings are usable.

    Raises:
        ConfigError: with all problems found.
    """
    from presence.server import credentials  # noqa: PLC0415 - loads cryptography, if a setting names a file

    settings = loaded.settings
    found = [
        f"{error} (from {loaded.sources[error.setting]})"
        for error in (*credentials.problems(settings), *credentials.operator_token_problems(settings))
    ]
    if found:
        raise ConfigError(found)


def run(_args: argparse.Namespace, load_again: Load) -> int:
    """Serve until a signal comes; return the exit status. SIGHUP loads the settings again."""
    loaded = load_again()
    check_files(loaded)
    notifier = from_environment()  # before any child process can inherit its environment
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(sigterm_interrupts())
        cleanup.enter_context(sighup_ignored())
        try:
            return _serve(loaded, load_again, notifier)
        except EmbeddedError as error:
            print_error(error)
            return FAILED
        except KeyboardInterrupt:  # before the server handled signals
            return OK


def _serve(loaded: Loaded, load_again: Load, notifier: Notifier) -> int:
    with contextlib.ExitStack() as cleanup:
        writer: LogWriter | DirectWriter
        log_format, log_level = loaded.settings.log_format, loaded.settings.log_level
        if loaded.settings.workers == 1:
            writer = cleanup.enter_context(configure(log_format, log_level))
        else:
            writer = configure_directly(log_format, log_level)
        import structlog  # noqa: PLC0415 - after `configure`, which loads it without rich

        from presence.server.listeners import CannotListen  # noqa: PLC0415 - as above
        from presence.server.running_servers import Announcement  # noqa: PLC0415 - as above

        log = structlog.get_logger()
        settings = _with_quick_start(loaded)
        if loaded.file is not None:
            log.info("settings file read", file=loaded.file)
        embedded, redis_url = None, settings.redis
        if redis_url is None:  # stopped last, after everything is written
            embedded = cleanup.enter_context(
                embedded_redis(settings.data_dir, on_loading=partial(_report_loading, notifier))
            )
            redis_url = embedded.url
            log.info("embedded Redis started", url=redis_url)
        for exposure in exposures(settings):
            risk, _, fix = exposure.rpartition(": ")
            log.warning("server is exposed", risk=risk, fix=fix)
        if settings.tls_only and loaded.sources["tls_port"] != DEFAULT_SOURCE:
            log.warning("tls port not used", tls_port=settings.tls_port, why="with tls_only TLS is at port")
        try:
            with _running_admin_process(loaded, redis_url) as admin_process:
                announcement = Announcement(settings, redis_url, admin_process.url if admin_process else None)
                cleanup.callback(announcement.withdraw)

                reread = partial(_log_changes, loaded.settings, load_again)
                watcher = _watcher(embedded, settings)
                if watcher is not None:
                    cleanup.callback(watcher.close)
                supervise = _both(watcher, admin_process)
                if isinstance(writer, DirectWriter):
                    from presence.server import supervisor  # noqa: PLC0415 - loads what the workers share

                    return supervisor.run(
                        settings,
                        redis_url,
                        writer,
                        reread,
                        notifier,
                        admin_process=admin_process,
                        supervise_others=supervise,
                        announce=announcement,
                    )
                from presence.server.process import Signals, run  # noqa: PLC0415 - trio and all of the server

                signals = Signals(
                    writer,
                    reread,
                    reload_others=admin_process.reload if admin_process else lambda: None,
                    notifier=notifier,
                    supervise_others=supervise if embedded or admin_process else None,
                    announce=announcement,
                )
                stats_socket = admin_process.line() if admin_process else None
                status = run(settings, redis_url, signals, stats_socket=stats_socket)
                return status or (FAILED if signals.has_failed else OK)
        except CannotListen as error:
            log.error("cannot listen", address=error.address, error=error.problem)  # noqa: TRY400 - the error is complete
        except Exception as error:
            if lack := scarcity(error):
                silence_finalizers()
                log.error("server failed", error=lack)  # noqa: TRY400 - the error is complete
            else:
                log.exception("server failed")
        return FAILED


def _with_quick_start(loaded: Loaded) -> Settings:
    """Return the settings with WebSocket on the loopback address, if nothing says where to listen.

    If its port is taken, another is picked.
    """
    settings = loaded.settings
    if any(loaded.sources[name] != DEFAULT_SOURCE for name in _LISTENING):
        return settings
    from presence.transports import sockets  # noqa: PLC0415 - as above

    port = QUICK_START_WS_PORT
    try:
        for each in sockets.open_listeners(settings.host, port):
            each.close()
    except OSError as error:
        import structlog  # noqa: PLC0415 - as above

        log = structlog.get_logger("presence.server.server")
        address = f"{settings.host}:{port}"
        log.warning("websocket port in use, using another", address=address, error=error.strerror)
        port = 0
    return replace(settings, ws_port=port)


def _report_loading(notifier: Notifier, percent: float) -> None:
    """Report that the embedded Redis is loading its data, which may take longer than a service may start."""
    import structlog  # noqa: PLC0415 - as above

    structlog.get_logger("presence.server.embedded").info("embedded Redis is loading", percent=percent)
    notifier.starting(f"loading data: {percent:.0f} %", 6 * LOADING_REPORT_S)


def _watcher(embedded: EmbeddedRedis | None, settings: Settings) -> "EmbeddedSupervisor | None":
    if embedded is None:
        return None
    from presence.server.embedded_supervisor import EmbeddedSupervisor  # noqa: PLC0415 - as above

    return EmbeddedSupervisor(embedded, settings.hang_timeout)


def _both(
    watcher: "EmbeddedSupervisor | None", admin_process: "AdminProcess | None"
) -> Callable[[], float | None]:
    """Return what supervises the children that are no workers."""

    def supervise() -> float | None:
        return min((each.supervise() for each in (watcher, admin_process) if each is not None), default=None)

    return supervise


def _log_changes(in_effect: Settings, load_again: Load) -> None:
    """Log the names of settings that have changed and need a restart, or the problems of the new ones."""
    import structlog  # noqa: PLC0415 - as above

    log = structlog.get_logger("presence.config.settings")
    try:
        now = load_again().settings
    except ConfigError as error:
        log.error("settings file is now invalid", problems=list(error.problems))  # noqa: TRY400 - the error is complete
        return
    changed = [f.name for f in fields(Settings) if getattr(now, f.name) != getattr(in_effect, f.name)]
    if changed:
        log.warning("settings changed, restart needed", settings=changed)


@contextlib.contextmanager
def _running_admin_process(loaded: Loaded, redis_url: str) -> "Iterator[AdminProcess | None]":
    """Run the admin process, unless `no_admin` is set: then none of its modules is loaded."""
    settings = loaded.settings
    if settings.no_admin:
        yield None
        return
    from presence.admin.launcher import running_admin_process  # noqa: PLC0415 - see above

    asked_for = loaded.sources["admin"] != DEFAULT_SOURCE
    with running_admin_process(
        settings, redis_url, asked_for=asked_for, workers=settings.workers
    ) as admin_process:
        yield admin_process
