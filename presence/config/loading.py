"""Settings from flags, variables, a file and defaults, checked together before anything starts.

``idle_timeout`` is ``--idle-timeout``, ``PRESENCE_IDLE_TIMEOUT`` and the TOML key ``idle_timeout``. A flag
wins over a variable, a variable over the file, the file over the default. What is not known or not
sound refuses to start: all problems are reported together, each names its key and where it came from. The
tables ``[[followups]]``, see `presence.config.followup_rules`, are of the file only.
"""

import dataclasses
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from presence.common import networks, redis_url
from presence.config.followup_rules import Rule, read_rules
from presence.config.settings import FIELDS, VARIABLE_PREFIX, SettingField, Settings, admin_host, admin_port


def exposures(s: Settings) -> Iterator[str]:
    """Give what strangers could do, in words; nothing of a server that only this machine reaches."""
    is_local = networks.is_loopback(s.host)
    if s.token_keys is None and not is_local:
        yield "any client that reaches this server can log in as any user: set token_keys"
    elif s.token_keys is None and s.proxy_from is not None:
        yield "any client that a proxy lets in can log in as any user: set token_keys"
    if s.token_keys is not None and not is_local and not s.tls_only and s.proxy_from is None:
        missing = "set tls_cert, tls_only" if s.tls_cert is None else "set tls_only, or block the plain port"
        yield f"tokens and messages over plain TCP can be read in transit: {missing}"
    if not (s.no_admin or networks.is_loopback(admin_host(s.admin))):
        yield "operator tokens over plain HTTP can be read in transit: put a TLS proxy in front"


WINDOW_OF_TICK = 0.25  # the batching window's largest share of a tick, or ends would come too late
TICKS_MAX = 100_000  # of the wheel: a set each, 40 MB

EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - to compare with

Complaint: TypeAlias = tuple[tuple[str, ...], str]
"""The keys that disagree, and what is wrong with the first of them."""


def contradictions(s: Settings) -> Iterator[Complaint]:
    """Give what is wrong with settings each of which is sound."""
    yield from _of_time(s)
    yield from _of_strangers(s)
    yield from _of_ports(s)
    if s.data_dir is not None and s.redis is not None:
        yield ("data_dir", "redis"), "is for the embedded Redis and cannot be combined with a redis URL"


def _of_time(s: Settings) -> Iterator[Complaint]:
    if s.tick > s.idle_timeout / 2:
        yield (
            ("tick", "idle_timeout"),
            f"{s.tick:g} s is more than half of idle_timeout, {s.idle_timeout:g} s",
        )
    longest, of = max(
        (max(s.idle_timeout, s.max_idle_timeout), "max_idle_timeout"), (s.away_after, "away_after")
    )
    if longest / s.tick > TICKS_MAX:
        yield (
            ("tick", of),
            f"{s.tick:g} s is too small for time-outs of {longest:g} s: the wheel holds {TICKS_MAX:,} ticks",
        )
    if s.min_idle_timeout > s.max_idle_timeout:
        yield (
            ("min_idle_timeout", "max_idle_timeout"),
            f"{s.min_idle_timeout:g} s is above max_idle_timeout, {s.max_idle_timeout:g} s",
        )
    if s.disconnect_grace > s.max_idle_timeout:
        yield (
            ("disconnect_grace", "max_idle_timeout"),
            f"{s.disconnect_grace:g} s is above max_idle_timeout, {s.max_idle_timeout:g} s",
        )
    if s.batch_window_ms > s.tick * WINDOW_OF_TICK * 1000:
        yield (
            ("batch_window_ms", "tick"),
            f"{s.batch_window_ms} ms is more than a quarter of tick, {s.tick * 1000:g} ms",
        )


def _of_strangers(s: Settings) -> Iterator[Complaint]:
    if not (s.token_keys or s.insecure or networks.is_loopback(s.host)):
        yield (
            ("host", "token_keys", "insecure"),
            f"{s.host} is reachable from other machines without authentication: "
            "set token_keys, or --insecure to allow it",
        )
    if not (s.no_admin or s.admin_tokens or networks.is_loopback(admin_host(s.admin))):
        yield (
            ("admin", "admin_tokens"),
            f"{s.admin} is reachable from other machines without authentication: set admin_tokens",
        )
    if s.tls_cert is None:
        if s.tls_key is not None:
            yield ("tls_key", "tls_cert"), "is set without a certificate: set tls_cert, too"
        if s.tls_only:
            yield ("tls_only", "tls_cert"), "needs a certificate: set tls_cert"
    elif s.port == s.tls_port != 0 and not s.tls_only:
        yield (
            ("tls_port", "port"),
            f"{s.tls_port} is already used by port: choose another, or set --tls-only",
        )


def _of_ports(s: Settings) -> Iterator[Complaint]:
    """A port that two are to listen at; several hosts may have one of the same number each."""
    port = admin_port(s.admin)
    if s.no_admin or port == 0 or s.host not in {admin_host(s.admin), *EVERYWHERE}:
        return
    taken = {s.port: "port"} if s.tls_cert is None or s.tls_only else {s.port: "port", s.tls_port: "tls_port"}
    if port in taken:
        yield ("admin", taken[port]), f"{port} is already used by {taken[port]}: choose another"


__all__ = ["FIELDS", "ConfigError", "Loaded", "SettingField", "Settings", "load", "nearest", "shown"]

CONFIG_VARIABLE = "PRESENCE_CONFIG"
TOKEN_VARIABLE = "PRESENCE_TOKEN"  # noqa: S105 - a name; of `presence client`
RULES = "followups"  # the one key of the file that is neither a flag nor a variable
DEFAULT_SOURCE = "default"
_SHOWN_CHARS = 60  # of a bad value; enough to recognise it
# What Kubernetes puts into every container of a namespace that has a Service named "presence".
_SERVICE_LINK = re.compile(r"PRESENCE_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")
_SERVICE_LINK_HINT = "looks like a Kubernetes service link: set enableServiceLinks: false"
HANG_TIMEOUT_MIN_S = 10.0  # of the default: a loaded machine may keep a process waiting for seconds


class ConfigError(Exception):
    """The settings are unknown, unsound or contradict each other.

    Attributes:
        problems: one line each; every line names a key and its source.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Checked settings and where each came from: a flag, a variable, ``file PATH`` or ``default``."""

    settings: Settings
    sources: Mapping[str, str]


class _Given(NamedTuple):
    key: str
    raw: object
    source: str


def load(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    serving: bool = True,
) -> Loaded:
    """Return the settings in effect.

    Args:
        flags: field name (or ``config``) to the text of its flag, True for a switch; None means not given.
        environ: the environment; `os.environ` by default.
        serving: check also what only a server cares about: how values agree with each other, and whether
            what they ask for exists yet. A reader may share a server's file.

    Raises:
        ConfigError: with every problem that was found.
    """
    flags = {name: raw for name, raw in (flags or {}).items() if raw is not None}
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    # The weakest source first, so that a later one replaces what it says.
    given = [
        *_from_file(flags.get("config") or environ.get(CONFIG_VARIABLE), problems),
        *_from_environment(environ, problems),
        *(_Given(name, raw, FIELDS[name].flag) for name, raw in flags.items() if name != "config"),
    ]
    values: dict[str, Any] = {}
    sources = dict.fromkeys([*FIELDS, RULES], DEFAULT_SOURCE)
    bad: set[str] = set()
    for key, raw, source in given:
        try:
            values[key] = FIELDS[key].parse(raw) if key != RULES else _rules(raw, source, problems)
            sources[key] = source
        except ValueError as error:
            bad.add(key)
            problems.append(f"{key}: {error}{_instead(key, raw)} (from {source})")
    settings = Settings(**values)
    settings = _yielding(settings, sources)
    if serving:
        for keys, complaint in (*contradictions(settings), *_not_here(settings)):
            if bad.isdisjoint(keys):
                origin = ", ".join(f"{key} from {sources[key]}" for key in keys)
                problems.append(f"{keys[0]}: {complaint} ({origin})")
    if problems:
        raise ConfigError(problems)
    return Loaded(settings, sources)


def _yielding(settings: Settings, sources: Mapping[str, str]) -> Settings:
    """Return settings whose defaults forbid nothing that others ask for."""
    if sources["batch_window_ms"] == DEFAULT_SOURCE:
        window_ms = min(settings.batch_window_ms, int(settings.tick * WINDOW_OF_TICK * 1000))
        settings = dataclasses.replace(settings, batch_window_ms=window_ms)
    if sources["hang_timeout"] == DEFAULT_SOURCE:
        timeout = min(settings.hang_timeout, max(settings.idle_timeout, HANG_TIMEOUT_MIN_S))
        settings = dataclasses.replace(settings, hang_timeout=timeout)
    if sources["admin"] == DEFAULT_SOURCE and admin_port(settings.admin) in {
        settings.port,
        settings.tls_port,
    }:
        settings = dataclasses.replace(settings, admin=f"{admin_host(settings.admin)}:0")
    return settings


def _from_file(path: object, problems: list[str]) -> Iterator[_Given]:
    if path is None:
        return
    source = f"file {path}"
    try:
        content = tomllib.loads(Path(str(path)).read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"config: cannot read {path}: {error.strerror}")
        return
    except ValueError as error:  # no TOML, or no UTF-8
        problems.append(f"config: {path} is not valid TOML: {error}")
        return
    for key, raw in content.items():
        if key in FIELDS or key == RULES:
            yield _Given(key, raw, source)
        else:
            problems.append(f"{key!r}: unknown key (from {source}){nearest(key, [*FIELDS, RULES])}")


def _rules(raw: object, source: str, problems: list[str]) -> tuple[Rule, ...]:
    rules, wrong = read_rules(raw, nearest)
    problems += [f"{RULES}: {problem} (from {source})" for problem in wrong]
    return rules


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> Iterator[_Given]:
    variables = {spec.variable: name for name, spec in FIELDS.items()}
    for variable in sorted(environ):
        if not variable.startswith(VARIABLE_PREFIX) or variable in {CONFIG_VARIABLE, TOKEN_VARIABLE}:
            continue
        if variable in variables:
            yield _Given(variables[variable], environ[variable], variable)
        elif variable == VARIABLE_PREFIX + RULES.upper():
            problems.append(f"{variable}: unknown variable; set rules in the file: [[{RULES}]]")
        elif _SERVICE_LINK.fullmatch(variable):
            problems.append(f"{variable}: unknown variable; {_SERVICE_LINK_HINT}")
        else:
            hint = nearest(variable, [*variables, CONFIG_VARIABLE])
            problems.append(f"{variable!r}: unknown variable{hint}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with the known name that resembles `name` most, or nothing."""

    def fold(text: str) -> str:
        # Case and the kind of dash are what people mix up most. Those in front make no flags alike.
        return text.lower().replace("-", "_").lstrip("_")

    folded = {fold(other): other for other in known}
    close = get_close_matches(fold(name), folded, n=1)
    return f"; did you mean {folded[close[0]]}?" if close else ""


def _instead(key: str, raw: object) -> str:
    if key == "redis":
        return ""  # it may hold a password, and a malformed URL cannot be redacted with certainty
    text = repr(raw)
    shown_raw = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
    link = f"; {_SERVICE_LINK_HINT}" if key == "port" and str(raw).startswith("tcp://") else ""
    return f", not {shown_raw}{link}"


def _not_here(s: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    yield from ()
    if s.workers > 1 and not sys.platform.startswith("linux"):
        yield ("workers",), "more than 1 needs Linux, where the kernel distributes connections among workers"
    if s.proxy_from is not None and not sys.platform.startswith("linux"):
        yield ("proxy_from",), "needs Linux: PROXY headers are not read on other systems"


def shown(settings: Settings, name: str) -> str | float | None:
    """Return a setting as it may be printed: a plain value, the password of a URL replaced."""
    value: object = getattr(settings, name)
    if name == "redis" and isinstance(value, str):
        return redis_url.redacted(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)
