"""Which settings are others by now than those that a server began with, and take a restart to count."""

from collections.abc import Callable
from dataclasses import fields

import structlog

from presence.config import ConfigError, Loaded
from presence.settings import Settings

log = structlog.get_logger("presence.settings")


def tell_changes(in_effect: Settings, load_again: Callable[[], Loaded]) -> None:
    """Log by name what the file of settings says otherwise now, or what is wrong with it; it never raises.

    Args:
        in_effect: what the server began with.
        load_again: loads flags, variables and file as they are now.
    """
    try:
        now = load_again().settings
    except ConfigError as error:
        log.error("settings have become bad", problems=list(error.problems))  # noqa: TRY400 - all is said
        return
    changed = [f.name for f in fields(Settings) if getattr(now, f.name) != getattr(in_effect, f.name)]
    if changed:
        log.warning("settings have changed, which takes a restart", settings=changed)
