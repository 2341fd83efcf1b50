"""Runs all checks: gathers facts first, then evaluates each check on them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from presence.config.loader import ConfigError, Loaded
from presence.config.settings import Settings
from presence.doctor import machine_checks, redis_checks, redis_facts, settings_checks
from presence.doctor.results import CHECKS, CheckResult

_NEED_NO_SETTINGS: Final = {"settings", "platform", "time"}


@dataclass(frozen=True, slots=True)
class CheckContext:
    """The input of all checks."""

    load: Callable[[], Loaded]  # loads the settings, and raises `ConfigError` with all problems
    handlers: Sequence[str] = ()  # functions for follow-ups, as ``module:function``
    root: Path = Path("/")  # parent directory of proc and sys


def run_checks(context: CheckContext) -> list[CheckResult]:
    """Run all checks; return the results in the order of `CHECKS`."""
    try:
        settings = context.load().settings
    except ConfigError as error:
        found = list(_without_settings(error.problems, context.root))
    else:
        found = list(_with_settings(context, settings))
    order = list(CHECKS)
    return sorted(found, key=lambda each: order.index(each.check))


def _without_settings(problems: Sequence[str], root: Path) -> Iterator[CheckResult]:
    """Give the results that do not need valid settings."""
    here = machine_checks.gather(Settings(port=0, no_admin=True), root)
    yield from settings_checks.settings(problems)
    yield from (machine_checks.platform(here), machine_checks.time(here))
    names = [name for name in CHECKS if name not in _NEED_NO_SETTINGS]
    yield from redis_checks.left_out(names, "the settings must be valid first")


def _with_settings(context: CheckContext, settings: Settings) -> Iterator[CheckResult]:
    here = machine_checks.gather(settings, context.root)
    connections = machine_checks.wanted(settings, here.hard_files)
    yield from settings_checks.settings(())
    yield from settings_checks.files(settings, context.handlers)
    yield machine_checks.platform(here)
    yield machine_checks.embedded_redis(settings, here)
    yield machine_checks.time(here)
    yield machine_checks.open_files(settings, here, connections)
    yield machine_checks.memory(settings, here, connections)
    yield from machine_checks.ports(settings, here)
    if settings.redis is None:
        yield from redis_checks.without_redis()
    else:
        yield from redis_checks.redis(settings, redis_facts.gather(settings, settings.redis), connections)
