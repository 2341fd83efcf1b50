"""One examination: facts first, then each check on them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from presence.config import DEFAULT_SOURCE, ConfigError, Loaded
from presence.doctor import (
    configuration,
    credentials_facts,
    facts,
    kernel,
    machine,
    redis_facts,
    redis_servers,
    shared_data,
)
from presence.doctor.catalogue import CHECKS
from presence.doctor.findings import Finding, fail, not_tried, ok
from presence.doctor.needs import Wanted, wanted
from presence.doctor.redis_facts import RedisFacts
from presence.settings import Settings

_REDIS_CHECKS: Final = [name for name in CHECKS if name.startswith("redis ")]
_SHARED_CHECKS: Final = ["replicas", "data", "nodes", "nodes' settings"]
_NEED_NO_SETTINGS: Final = {"settings", "platform", "python", "clock source", "time"}


@dataclass(frozen=True, slots=True)
class Patient:
    """What is examined.

    Attributes:
        load: loads the settings, and raises `ConfigError` with all problems.
        handlers: functions for follow-ups, as ``module:function``.
        root: where proc and sys are.
    """

    load: Callable[[], Loaded]
    handlers: Sequence[str] = ()
    root: Path = Path("/")


def examine(patient: Patient) -> list[Finding]:
    """Return all findings, in the order of the catalogue; nothing is changed."""
    try:
        loaded = patient.load()
    except ConfigError as error:
        found = _without_settings(error.problems, patient.root)
    else:
        found = list(_with_settings(patient, loaded))
    order = list(CHECKS)
    return sorted(found, key=lambda each: order.index(each.check))


def _without_settings(problems: Sequence[str], root: Path) -> list[Finding]:
    """Return what can be found out while nobody knows the settings."""
    here = facts.gather(Settings(no_admin=True), root)
    found = [*configuration.settings(problems), machine.platform(here), machine.python(here)]
    found += [machine.clock_source(here), machine.time(here)]
    why = "the settings have to be sound first"
    return found + [
        not_tried(name, need, why) for name, need in CHECKS.items() if name not in _NEED_NO_SETTINGS
    ]


def _with_settings(patient: Patient, loaded: Loaded) -> Iterator[Finding]:
    settings, here = loaded.settings, facts.gather(loaded.settings, patient.root)
    connections = wanted(settings, here.files.hard)
    asked = {name for name, source in loaded.sources.items() if source != DEFAULT_SOURCE}
    named = credentials_facts.gather(settings, patient.handlers)
    yield from configuration.settings(())
    yield from configuration.files(settings, named, datetime.now(UTC))
    yield from machine.software(settings, here)
    yield machine.open_files(settings, here, connections)
    yield machine.room(settings, here, connections)
    yield from machine.ports(settings, here, asked)
    yield from kernel.kernel(settings, here, connections)
    if settings.redis is None:
        yield from _left_out(["redis", *_REDIS_CHECKS, *_SHARED_CHECKS], "no redis URL: serve starts its own")
    else:
        yield from redis(settings, redis_facts.gather(settings, settings.redis), connections)


def redis(settings: Settings, found: RedisFacts, connections: Wanted) -> Iterator[Finding]:
    """Give all findings about Redis and what it holds."""
    need = "an answer within 2 s"
    if found.failure:
        yield fail("redis", need, f"{found.url}: {found.failure}", _mend(found.failure))
        names = [*_REDIS_CHECKS, *_SHARED_CHECKS]
        if found.is_cluster:
            names += ["slots", "slots' replicas", "full coverage"]
        yield from _left_out(names, "Redis does not answer")
        return
    yield ok("redis", need, found.url)
    yield from redis_servers.servers(settings, found, connections)
    yield from shared_data.rights(found)
    yield from shared_data.cluster(found)
    yield shared_data.data(settings, found)
    yield shared_data.nodes(found)
    yield shared_data.nodes_settings(settings, found)


def _left_out(names: Collection[str], why: str) -> Iterator[Finding]:
    for name in names:
        yield not_tried(name, CHECKS[name], why)


def _mend(failure: str) -> str:
    """Return what helps somebody whom Redis does not answer, by what it says or does not say."""
    if any(word in failure.lower() for word in ("auth", "password", "wrongpass")):
        return "put user and password into the URL: redis://USER:PASSWORD@HOST; its user is in ACL LIST"
    if "noperm" in failure.lower() or "permissions" in failure.lower():
        return "let the user +ping, and what presence/docs/redis.md lists"
    if "TLS" in failure or "certificate" in failure:
        return "rediss:// where it has TLS, with ?ssl_ca_certs=FILE if its authority is your own"
    return "start it, or name another with --redis URL; redis-cli -u URL PING asks the same"
