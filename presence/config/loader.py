"""Settings from flags, variables, a file and defaults, checked together before anything starts.

``idle_timeout`` is ``--idle-timeout``, ``PRESENCE_IDLE_TIMEOUT`` and the TOML key ``idle_timeout``. A flag
overrides a variable, a variable the file, the file the default. Unknown keys and invalid values are errors:
all of them are reported together, each with its key and source; of a removed setting with what holds now. The
tables ``[[followups]]``, see `presence.config.followup_rules`, exist in the file only.
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
from presence.common.files import open_regular_file
from presence.config.followup_rules import Rule, read_rules
from presence.config.removed import REMOVED, removal
from presence.config.settings import FIELDS, VARIABLE_PREFIX, SettingField, Settings, admin_host, admin_port


def exposures(s: Settings) -> Iterator[str]:
    """Yield what untrusted clients could do, as ``risk: fix``; nothing if only this machine can connect."""
    is_local = networks.is_loopback(s.host) and networks.is_loopback(s.websocket_host)
    is_open = s.token_keys is None and s.tls_client_ca is None
    if is_open and not is_local:
        yield "any client that reaches this server can log in as any user: set token_keys"
    elif is_open and s.proxy_from is not None:
        yield "any client that a proxy lets in can log in as any user: set token_keys"
    if s.token_keys is not None and not is_local and not s.tls_only and s.proxy_from is None:
        missing = "set tls_cert, tls_only" if s.tls_cert is None else "set tls_only, or block the plain port"
        yield f"tokens and messages over plain TCP can be read in transit: {missing}"
    if not (s.no_admin or networks.is_loopback(admin_host(s.admin))):
        yield "operator tokens over plain HTTP can be read in transit: put a TLS proxy in front"


MAX_TICKS = 100_000  # of the wheel: one set each, 40 MB

MAX_SHARDS_WITH_ROOMS = 64  # each keeps a position of each: 4,096, some 0.4 MB

ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - only compared with

Conflict: TypeAlias = tuple[tuple[str, ...], str]
"""The keys that conflict, and what is wrong with the first of them."""


def conflicts(s: Settings) -> Iterator[Conflict]:
    """Yield conflicts between settings that are valid each on its own."""
    yield from _time_conflicts(s)
    yield from _exposure_conflicts(s)
    yield from _tls_conflicts(s)
    yield from _port_conflicts(s)
    yield from _room_conflicts(s)
    if s.data_dir is not None and s.redis is not None:
        yield ("data_dir", "redis"), "is for the embedded Redis and cannot be combined with a redis URL"


def _time_conflicts(s: Settings) -> Iterator[Conflict]:
    if s.tick > s.idle_timeout / 2:
        yield (
            ("tick", "idle_timeout"),
            f"{s.tick:g} s is more than half of idle_timeout, {s.idle_timeout:g} s",
        )
    longest, of = max(
        (max(s.idle_timeout, s.max_idle_timeout), "max_idle_timeout"), (s.away_after, "away_after")
    )
    if longest / s.tick > MAX_TICKS:
        yield (
            ("tick", of),
            f"{s.tick:g} s is too small for time-outs of {longest:g} s: the wheel holds {MAX_TICKS:,} ticks",
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


def _exposure_conflicts(s: Settings) -> Iterator[Conflict]:
    for name in ("host", "ws_host"):
        host = getattr(s, name)
        if host and not (s.token_keys or s.tls_client_ca or s.insecure or networks.is_loopback(host)):
            yield (
                (name, "token_keys", "insecure"),
                f"{host} is reachable from other machines without authentication: "
                "set token_keys, or --insecure to allow it",
            )
    for name in ("ws_host", "ws_origins"):
        if getattr(s, name) is not None and s.ws_port is None:
            yield (name, "ws_port"), "is set without a port for WebSocket: set ws_port, too"
    if s.visibility == "claims" and s.token_keys is None:
        yield ("visibility", "token_keys"), "claims are those of tokens: set token_keys, or visibility to all"
    for audience in s.token_audiences if s.visibility == "claims" else ():
        if (of_passes := f"{audience}:pass") in s.token_audiences:
            yield (
                ("token_audience", "visibility"),
                f"{of_passes} is the audience of passes for {audience}: a pass would be a token",
            )
    if not (s.no_admin or s.admin_tokens or networks.is_loopback(admin_host(s.admin))):
        yield (
            ("admin", "admin_tokens"),
            f"{s.admin} is reachable from other machines without authentication: set admin_tokens",
        )


def _room_conflicts(s: Settings) -> Iterator[Conflict]:
    if s.rooms == "claimed" and s.token_keys is None:
        yield ("rooms", "token_keys"), "claims are those of tokens: set token_keys, or rooms to open or off"
    if s.rooms != "off" and s.shard_count > MAX_SHARDS_WITH_ROOMS:
        yield (
            ("rooms", "shards"),
            f"needs at most {MAX_SHARDS_WITH_ROOMS} shards, not {s.shard_count:,}: set rooms to off",
        )


def _tls_conflicts(s: Settings) -> Iterator[Conflict]:
    if s.tls_client_ca is not None and s.token_keys is None and not s.tls_only:
        yield (
            ("tls_client_ca", "tls_only", "token_keys"),
            "clients of the plain port have no certificate: set tls_only, or token_keys",
        )
    if s.tls_cert is None:
        if s.tls_key is not None:
            yield ("tls_key", "tls_cert"), "is set without a certificate: set tls_cert, too"
        if s.tls_only:
            yield ("tls_only", "tls_cert"), "needs a certificate: set tls_cert"
        if s.tls_client_ca is not None:
            yield ("tls_client_ca", "tls_cert"), "is set without a certificate: set tls_cert, too"
    elif s.port == s.tls_port != 0 and not s.tls_only:
        yield (
            ("tls_port", "port"),
            f"{s.tls_port} is already used by port: choose another, or set --tls-only",
        )
    if s.tls_client_crl is not None and s.tls_client_ca is None:
        yield ("tls_client_crl", "tls_client_ca"), "is set without authorities: set tls_client_ca, too"


def _port_conflicts(s: Settings) -> Iterator[Conflict]:
    """Yield ports that are used twice; different hosts may use the same number."""
    listeners = [("port", s.host, s.port)]
    if s.tls_cert is not None and not s.tls_only:
        listeners.append(("tls_port", s.host, s.tls_port))
    others = [] if s.ws_port is None else [("ws_port", s.websocket_host, s.ws_port)]
    if not s.no_admin:
        others.append(("admin", admin_host(s.admin), admin_port(s.admin)))
    for name, host, port in others:
        for used_by, other, taken in listeners:
            if port == taken != 0 and (host == other or not {host, other}.isdisjoint(ALL_ADDRESSES)):
                yield (name, used_by), f"{port} is already used by {used_by}: choose another"
        listeners.append((name, host, port))


__all__ = ["FIELDS", "ConfigError", "Loaded", "SettingField", "Settings", "load", "nearest", "shown"]

CONFIG_VARIABLE = "PRESENCE_CONFIG"
SYSTEM_FILE = Path("/etc/presence/presence.toml")
MAX_FILE_BYTES = 1_048_576  # every setting and a thousand rules take less; more is another file
TOKEN_VARIABLE = "PRESENCE_TOKEN"  # noqa: S105 - a name; of `presence client`
RULES = "followups"  # the only key of the file without a flag and a variable
DEFAULT_SOURCE = "default"
_MAX_SHOWN_CHARS = 60  # of an invalid value; enough to recognise it
# Variables that Kubernetes sets in all containers of a namespace with a Service named "presence".
_SERVICE_LINK = re.compile(r"PRESENCE_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")
_SERVICE_LINK_HINT = "looks like a Kubernetes service link: set enableServiceLinks: false"
# Lower bound of the default, because a loaded machine may delay a process for seconds.
MIN_HANG_TIMEOUT_S = 10.0


class ConfigError(Exception):
    """Settings are unknown, invalid or in conflict with each other.

    Attributes:
        problems: one line each, with the key and its source.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Checked settings, and the source of each: a flag, a variable, ``file PATH`` or ``default``."""

    settings: Settings
    sources: Mapping[str, str]
    file: str | None = None  # the settings file, if one was read


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
        serving: also check what matters to a server only: conflicts between settings, and whether this
            platform supports them. Other commands may share a server's file.

    Raises:
        ConfigError: with all problems.
    """
    flags = {name: raw for name, raw in (flags or {}).items() if raw is not None}
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    file = flags.get("config") or environ.get(CONFIG_VARIABLE)
    # The weakest source first, so that later ones override it.
    given = [
        *_from_file(file, problems),
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
            problems.append(f"{key}: {error}{_given_value(key, raw)} (from {source})")
    settings = Settings(**values)
    settings = _adjust_defaults(settings, sources)
    if serving:
        for keys, problem in (*conflicts(settings), *_unsupported(settings)):
            if bad.isdisjoint(keys):
                origin = ", ".join(f"{key} from {sources[key]}" for key in keys)
                problems.append(f"{keys[0]}: {problem} ({origin})")
    if problems:
        raise ConfigError(problems)
    return Loaded(settings, sources, None if file is None else str(file))


def default_file(environ: Mapping[str, str]) -> Path | None:
    """Return the settings file that is read if none is named: that of the user, else that of the system.

    It is not read from the working directory, where another user may have put it.
    """
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or "/nonexistent", ".config")
    files = (Path(home, "presence", "presence.toml"), SYSTEM_FILE)
    return next((each for each in files if os.path.isfile(each)), None)  # False in a closed folder


def _adjust_defaults(settings: Settings, sources: Mapping[str, str]) -> Settings:
    """Return settings with defaults adjusted to the values that were set, so that they do not conflict."""
    if sources["hang_timeout"] == DEFAULT_SOURCE:
        timeout = min(settings.hang_timeout, max(settings.idle_timeout, MIN_HANG_TIMEOUT_S))
        settings = dataclasses.replace(settings, hang_timeout=timeout)
    if sources["admin"] == DEFAULT_SOURCE and admin_port(settings.admin) in {
        settings.port,
        settings.tls_port,
        settings.ws_port,
    }:
        settings = dataclasses.replace(settings, admin=f"{admin_host(settings.admin)}:0")
    return settings


def _from_file(path: object, problems: list[str]) -> Iterator[_Given]:
    if path is None or str(path) == os.devnull:  # the usual name for no file at all
        return
    source = f"file {path}"
    try:
        with open_regular_file(Path(str(path))) as file:
            raw_content = file.read(MAX_FILE_BYTES + 1)
        if len(raw_content) > MAX_FILE_BYTES:
            problems.append(f"config: {path} is larger than {MAX_FILE_BYTES:,} bytes")
            return
        content = tomllib.loads(raw_content.decode("utf-8"))
    except OSError as error:
        problems.append(f"config: cannot read {path}: {error.strerror}")
        return
    except ValueError as error:  # invalid TOML or UTF-8
        problems.append(f"config: {path} is not valid TOML: {error}")
        return
    except RecursionError:
        problems.append(f"config: {path} is not valid TOML: it is nested too deeply")
        return
    for key, raw in content.items():
        if key in FIELDS or key == RULES:
            yield _Given(key, raw, source)
        elif key in REMOVED:
            problems.append(f"{removal(key)} (from {source})")
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
        elif (name := variable.removeprefix(VARIABLE_PREFIX).lower()) in REMOVED:
            problems.append(f"{removal(name)} (from {variable})")
        else:
            hint = nearest(variable, [*variables, CONFIG_VARIABLE])
            problems.append(f"{variable!r}: unknown variable{hint}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with the most similar known name, or an empty text."""

    def fold(text: str) -> str:
        # Case and dashes are confused most often. Leading dashes do not make flags similar.
        return text.lower().replace("-", "_").lstrip("_")

    folded = {fold(other): other for other in known}
    close = get_close_matches(fold(name), folded, n=1)
    return f"; did you mean {folded[close[0]]}?" if close else ""


def _given_value(key: str, raw: object) -> str:
    if key in {"redis", "token_keys"}:
        return ""  # may contain a password, and a malformed URL cannot be redacted reliably
    try:
        text = repr(raw)
    except (RecursionError, ValueError):  # deep tables from dotted keys; an integer of thousands of digits
        text = "a value too large to show"
    shown_raw = text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"
    link = f"; {_SERVICE_LINK_HINT}" if key == "port" and text.startswith("'tcp://") else ""
    return f", not {shown_raw}{link}"


def _unsupported(s: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    yield from ()
    if s.workers > 1 and not sys.platform.startswith("linux"):
        yield ("workers",), "more than 1 needs Linux, where the kernel distributes connections among workers"
    if s.proxy_from is not None and not sys.platform.startswith("linux"):
        yield ("proxy_from",), "needs Linux: PROXY headers are not read on other systems"


def shown(settings: Settings, name: str) -> str | float | None:
    """Return a setting as a printable plain value, with the password of a URL redacted."""
    value: object = getattr(settings, name)
    if name == "redis" and isinstance(value, str):
        return redis_url.redacted(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)
