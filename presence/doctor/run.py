"""Runs all checks: gathers facts first, then evaluates each check on them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from presence.config.loading import ConfigError, Loaded
from presence.config.settings import Settings
from presence.doctor import configuration, machine, redis_checks, redis_facts
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
    here = machine.gather(Settings(port=0, no_admin=True), root)
    yield from configuration.settings(problems)
    yield from (machine.platform(here), machine.time(here))
    names = [name for name in CHECKS if name not in _NEED_NO_SETTINGS]
    yield from redis_checks.left_out(names, "the settings must be valid first")


def _with_settings(context: CheckContext, settings: Settings) -> Iterator[CheckResult]:
    here = machine.gather(settings, context.root)
    connections = machine.wanted(settings, here.hard_files)
    yield from configuration.settings(())
    yield from configuration.files(settings, context.handlers)
    yield machine.platform(here)
    yield machine.embedded_redis(settings, here)
    yield machine.time(here)
    yield machine.open_files(settings, here, connections)
    yield machine.memory(settings, here, connections)
    yield from machine.ports(settings, here)
    if settings.redis is None:
        yield from redis_checks.without_redis()
    else:
        yield from redis_checks.redis(settings, redis_facts.gather(settings, settings.redis), connections)
