"""All settings, each with its unit, its bounds and one line of help.

Flags, variables and file keys are derived from the names here; `presence.config.loader` loads the values.
Follow-up rules can only be set in the file: see `presence.config.followup_rules`.

Tests: `tests/config/test_loader.py`, `tests/docs/test_tables.py`.
"""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints
from urllib.parse import urlsplit

from presence.common import networks, redis_url
from presence.config.followup_rules import Rule
from presence.protocol.constants import CLASS_MAX_BYTES

VARIABLE_PREFIX = "PRESENCE_"


class SettingField(NamedTuple):
    """One field of `Settings`, as a flag, a variable or a key of the file."""

    name: str
    kind: type
    default: object
    help: str
    unit: str
    bounds: tuple[float, float] | None
    choices: tuple[str, ...]
    form: Callable[[str], None] | None
    is_list: bool
    group: str

    @property
    def flag(self) -> str:
        """The flag on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return VARIABLE_PREFIX + self.name.upper()

    def parse(self, raw: object) -> object:
        """Return the value that `raw` means: text from a flag or variable, or a typed value from the file.

        Raises:
            ValueError: its text says what the value must be.
        """
        if raw == "":
            raise ValueError("must not be empty")
        if self.kind is bool:
            return _boolean(raw)
        if self.kind in {int, float}:
            return self._number(raw)
        if self.is_list and isinstance(raw, list) and raw and all(isinstance(each, str) for each in raw):
            raw = ",".join(raw)
        if not isinstance(raw, str) or "\0" in raw:
            raise ValueError("must be text")
        if self.choices and raw not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}")
        if self.form is not None:
            self.form(raw)
        return Path(raw) if self.kind is Path else raw

    def _number(self, raw: object) -> float:
        low, high = self.bounds or (float("-inf"), float("inf"))
        noun = "whole number" if self.kind is int else "number"
        wanted = f"must be a {noun} from {low:,} to {high:,} {self.unit}".rstrip()
        typed = isinstance(raw, int | self.kind) and not isinstance(raw, bool)
        try:
            value: float = self.kind(raw) if typed or isinstance(raw, str) else float("nan")
        except (ValueError, OverflowError):
            raise ValueError(wanted) from None
        if not low <= value <= high:  # also excludes NaN
            raise ValueError(wanted)
        return value


def _boolean(raw: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    value = words.get(raw.lower()) if isinstance(raw, str) else raw
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004 - one error type for every bad value
    return value


_DAY_S = 86_400
# Settings that all nodes on one Redis should share: lease and time-outs, the session limit, and how much is
# kept of users and events, where the smallest number of all nodes applies.
_SHARED = (
    "lease",
    "idle_timeout",
    "disconnect_grace",
    "max_sessions",
    "session_policy",
    "class_sessions",
    "device_events",
    "stream_maxlen",
    "seen_retention_days",
    "visibility",
    "rooms",
    "max_listed_members",
    "room_events",
    "max_rooms",
)


def _host(text: str) -> None:
    if not text.isprintable() or " " in text:
        raise ValueError("must be a host name or an address")


def _prefix(text: str) -> None:
    # Braces would move the cluster's hash tag from the shard to the prefix.
    if not text.isprintable() or any(c in "{}" or c.isspace() for c in text):
        raise ValueError("must not contain braces, white space or control characters")


def _address(text: str) -> None:
    host, colon, port = text.rpartition(":")
    _host(host)
    if not (host and colon and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("must be HOST:PORT")


def admin_host(address: str) -> str:
    """Return the host of a ``HOST:PORT``, without the brackets of an IPv6 address."""
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


def admin_port(address: str) -> int:
    """Return the port of a ``HOST:PORT``."""
    return int(address.rpartition(":")[2])


def _name(text: str) -> None:
    if not text.isprintable() or any(c.isspace() for c in text):
        raise ValueError("must not contain white space or control characters")


def is_url(source: str) -> bool:
    """Return whether `token_keys` is a URL, and not a file."""
    return "://" in source


def _key_source(text: str) -> None:
    if not is_url(text):
        return
    _name(text)
    try:
        url = urlsplit(text)
        host, _ = url.hostname or "", url.port
    except ValueError:
        raise ValueError("must be a URL with a valid host and port") from None
    if url.username is not None:
        raise ValueError("must not contain a user name or a password: a public key set needs none")
    if not host or not (url.scheme == "https" or (url.scheme == "http" and networks.is_loopback(host))):
        raise ValueError("must be a file, an https:// URL, or an http:// URL of a loopback host")


def _names(text: str) -> None:
    for name in comma_separated(text):
        if not name:
            raise ValueError("must be comma-separated names")
        _name(name)


def comma_separated(text: str) -> tuple[str, ...]:
    """Return the elements of a list in one text."""
    return tuple(each.strip() for each in text.split(","))


QUICK_START_WS_PORT = 7401
# As browsers write it: lower case, without a path. "null" is that of a file, and of pages that hide theirs.
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://(\*\.)?[a-z0-9_.\[\]:-]+", re.ASCII)
MAX_SESSIONS = 64  # of a user
_POLICIES = "oldest", "newest"


def class_limits(text: str | None) -> dict[str, tuple[int, str]]:
    """Return the most sessions and the policy by class of device, from text like ``phone=1,web=3:newest``.

    Raises:
        ValueError: it has another form.
    """
    limits: dict[str, tuple[int, str]] = {}
    for each in comma_separated(text) if text else ():
        name, _, limit = each.partition("=")
        most, _, policy = limit.partition(":")
        _name(name)
        is_number = most.isascii() and most.isdigit() and 1 <= int(most) <= MAX_SESSIONS
        if not (name and is_number and policy in {"", *_POLICIES} and len(name.encode()) <= CLASS_MAX_BYTES):
            raise ValueError(f"must be like phone=1 or web=3:newest, with numbers from 1 to {MAX_SESSIONS}")
        limits[name] = int(most), policy or "oldest"
    return limits


def _class_limits(text: str) -> None:
    class_limits(text)


def _networks(text: str) -> None:
    networks.parse(text)


def _origins(text: str) -> None:
    for each in comma_separated(text):
        if not _ORIGIN.fullmatch(each):
            raise ValueError("must be origins like https://example.com or https://*.example.com:8443, or *")


def _redis_url(text: str) -> None:
    redis_url.parse(text)


def _setting(
    default: object,
    help_text: str,
    *,
    unit: str = "",
    bounds: tuple[float, float] | None = None,
    choices: tuple[str, ...] = (),
    form: Callable[[str], None] | None = None,
    is_list: bool = False,
    group: str,
) -> Any:
    """Declare a field of `Settings` in a group of the help; see `SettingField`.

    Bounds are inclusive, `form` raises ValueError for invalid text, and `is_list` allows a list of texts in
    the file in place of comma-separated text.
    """
    metadata: dict[str, object] = {
        "help": help_text,
        "unit": unit,
        "bounds": bounds,
        "choices": choices,
        "form": form,
        "is_list": is_list,
        "group": group,
    }
    return dataclasses.field(default=default, metadata=metadata)


# The groups in which `--help` and docs/settings.md list the settings.
_server = partial(_setting, group="server")
_presence = partial(_setting, group="presence")
_redis = partial(_setting, group="redis")
_limit = partial(_setting, group="limits")
_auth = partial(_setting, group="authentication")
_tls = partial(_setting, group="tls")
_log = partial(_setting, group="log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a server. `presence.config.loader.load` checks them; the constructor does not."""

    host: str = _server("127.0.0.1", "address to listen on; 0.0.0.0: all of IPv4; :: all of both", form=_host)
    port: int = _server(7400, "TCP port to listen on; 0 picks a free one", bounds=(0, 65535))
    workers: int = _server(1, "worker processes that share the port", bounds=(1, 256))
    data_dir: Path | None = _server(  # noqa: RUF009 - declares a field, as dataclasses.field does
        None, "data directory of the embedded Redis; without it, data is kept in memory only"
    )
    drain_timeout: float = _server(10.0, "maximum time to drain before stopping", unit="s", bounds=(0, 3600))
    hang_timeout: float = _server(
        30.0,
        "how long the event loop of a watched process may hang before the process is replaced; "
        "the default is lowered to idle_timeout, but not below 10 s",
        unit="s",
        bounds=(0.5, 3600),
    )
    ws_host: str | None = _server(
        None, "address to listen on for WebSocket; by default, that of host", form=_host
    )
    ws_port: int | None = _server(
        None,
        "TCP port for WebSocket, with TLS if tls_cert is set; 0 picks a free one. Without it there is none, "
        f"except {QUICK_START_WS_PORT} if host, port and TLS have their defaults",
        bounds=(0, 65535),
    )
    ws_origins: str | None = _server(
        None,
        "comma-separated origins of web pages that may connect, as https://example.com or "
        "https://*.example.com; *: all; without it, pages that this machine serves",
        form=_origins,
        is_list=True,
    )
    admin: str = _server(
        "127.0.0.1:7480",
        "HTTP address for operators (live page, metrics, API); port 0 picks a free one",
        form=_address,
    )
    no_admin: bool = _server(False, "do not serve HTTP for operators")
    admin_tokens: Path | None = _server(  # noqa: RUF009 - declares a field, as dataclasses.field does
        None, "file with operator tokens; without it, every caller on a loopback address is an operator"
    )
    insecure: bool = _server(False, "allow listening beyond loopback without authentication")

    idle_timeout: float = _presence(
        30.0, "silence after which a session expires", unit="s", bounds=(0.1, _DAY_S)
    )
    min_idle_timeout: float = _presence(
        5.0, "shortest idle time-out that a client may request", unit="s", bounds=(0.1, _DAY_S)
    )
    max_idle_timeout: float = _presence(
        1350.0, "longest idle time-out that a client may request", unit="s", bounds=(0.1, _DAY_S)
    )
    tick: float = _presence(1.0, "interval at which deadlines are checked", unit="s", bounds=(0.05, 60))
    disconnect_grace: float = _presence(
        5.0,
        "time to reconnect after a lost connection before the user goes offline",
        unit="s",
        bounds=(0, _DAY_S),
    )
    event_address: bool = _presence(
        False, "whether events have the client's address: of IPv6, its network of 64 bits"
    )
    max_sessions: int = _presence(8, "concurrent sessions per user", bounds=(1, MAX_SESSIONS))
    session_policy: str = _presence(
        "oldest", "which session ends when a login exceeds max_sessions", choices=_POLICIES
    )
    class_sessions: str | None = _presence(
        None,
        "concurrent sessions per user and class of device, and which ends when a login exceeds them, as "
        "phone=1,web=3:newest; without it, only max_sessions holds",
        form=_class_limits,
        is_list=True,
    )
    device_events: bool = _presence(
        False, "whether a device that comes or goes has an event while its user stays online"
    )
    away_after: float = _presence(
        0.0,
        "time without packets other than keepalives after which a session is away; 0: never",
        unit="s",
        bounds=(0, _DAY_S),
    )
    max_watches: int = _presence(1000, "users that one connection may watch", bounds=(1, 10**6))
    watch_memory: int = _presence(
        256,
        "memory per worker for watches; when it is used up, a connection may watch 10 users and 10 rooms",
        unit="MB",
        bounds=(0, 10**6),
    )
    roster_memory: int = _presence(
        1000,
        "memory in Redis for rosters that come over HTTP; what makes rosters smaller is always possible",
        unit="MB",
        bounds=(0, 10**6),
    )

    rooms: str = _presence(
        "off",
        "which rooms clients may be in: off: none; claimed: those that their tokens name; open: any",
        choices=("off", "claimed", "open"),
    )
    max_listed_members: int = _presence(
        0,
        "largest room of which clients that watch it are shown the members; 0: only how many there are",
        bounds=(0, 200),
    )

    redis: str | None = _redis(
        None,
        "redis://, rediss://, unix://, redis+cluster:// or redis+sentinel:// URL; without it, an embedded "
        "Redis is started",
        form=_redis_url,
    )
    prefix: str = _redis("presence", "prefix of all keys in Redis", form=_prefix)
    shards: int = _redis(
        0,
        "number of shards that users are distributed over; 0: 1, or 16 on a Redis Cluster",
        bounds=(0, 16384),
    )
    lease: float = _redis(
        10.0,
        "silence towards Redis after which other nodes fence this node; after a further "
        "idle_timeout its users go offline",
        unit="s",
        bounds=(0.5, 3600),
    )
    stream_maxlen: int = _redis(
        1_000_000,
        "approximate number of events kept in the stream of each shard",
        unit="events",
        bounds=(1, 10**12),
    )
    seen_retention_days: int = _redis(
        30,
        "how long the time is kept at which an offline user was last seen",
        unit="days",
        bounds=(1, 36_500),
    )
    room_events: str = _redis(
        "occupancy",
        "events in the stream of rooms; occupancy: of the first member of a room, and of the last one that "
        "leaves; all: of each member",
        choices=("occupancy", "all"),
    )

    login_timeout: float = _limit(5.0, "time from accept to a complete login", unit="s", bounds=(0.1, 300))
    max_connections: int = _limit(
        0,
        "concurrent connections per worker; 0: derived from the open file limit",
        bounds=(0, 10_000_000),
    )
    login_rate: int = _limit(
        5_000,
        "sustained rate of granted logins per worker, with bursts of 4 s; above it, or above twice as many "
        "connections, busy",
        unit="per second",
        bounds=(1, 10**6),
    )
    unsent_bytes: int = _limit(
        65_536,
        "unsent bytes, in addition to one packet, above which a slow client is disconnected",
        unit="bytes",
        bounds=(1024, 2**30),
    )
    address_connections: int = _limit(
        0, "concurrent connections per client address and worker; 0: no limit", bounds=(0, 10**7)
    )
    address_login_rate: int = _limit(
        0,
        "sustained login rate per client address and worker, with bursts of 100 s; 0: no limit",
        unit="per second",
        bounds=(0, 10**6),
    )
    uid_login_rate: int = _limit(
        10,
        "sustained login rate per user and worker, with bursts of 100 s; 0: no limit",
        unit="per second",
        bounds=(0, 10**6),
    )
    packet_rate: int = _limit(
        1000,
        "sustained packet rate per user and worker, with bursts of 10 s; above it, the connection is closed",
        unit="per second",
        bounds=(1, 10**6),
    )
    max_rooms: int = _limit(
        1_000_000, "rooms in Redis that have members, split among the shards", bounds=(64, 10**9)
    )

    token_keys: str | None = _auth(
        None,
        "file or https:// URL of the keys that verify tokens; without it, no tokens are checked",
        form=_key_source,
    )
    token_keys_refresh: float = _auth(
        300.0, "interval at which keys are read again from a URL", unit="s", bounds=(10, _DAY_S)
    )
    token_issuer: str | None = _auth(None, "issuer that a token must name; without it, any", form=_name)
    token_audience: str = _auth(
        "presence", "comma-separated audiences, one of which a token must name", form=_names, is_list=True
    )
    token_leeway: float = _auth(
        0.0, "tolerated clock difference between token issuers and this machine", unit="s", bounds=(0, 300)
    )
    visibility: str = _auth(
        "all",
        "whom clients may query, watch and message: all, or whom the claims of their tokens name",
        choices=("all", "claims"),
    )

    tls_cert: Path | None = _tls(  # noqa: RUF009 - as above
        None, "PEM file with the certificate and its chain; enables TLS"
    )
    tls_key: Path | None = _tls(  # noqa: RUF009 - as above
        None, "PEM file with the private key; by default, the certificate file holds it"
    )
    tls_client_ca: Path | None = _tls(  # noqa: RUF009 - as above
        None,
        "PEM file with the authorities that sign client certificates; without token_keys, clients need one",
    )
    tls_client_uid: str = _tls(
        "cn",
        "part of a client certificate that is the uid: common name or subject alternative name",
        choices=("cn", "san-uri", "san-dns", "san-email"),
    )
    tls_client_crl: Path | None = _tls(  # noqa: RUF009 - as above
        None, "PEM file with the revocation lists of the authorities that sign client certificates"
    )
    tls_port: int = _tls(7443, "TCP port for TLS; 0 picks a free one", bounds=(0, 65535))
    tls_only: bool = _tls(False, "accept TLS only, at port")
    proxy_from: str | None = _tls(
        None,
        "comma-separated networks whose connections begin with a PROXY protocol v2 header",
        form=_networks,
        is_list=True,
    )

    log_format: str = _log(
        "auto",
        "log format; auto: console on a terminal, JSON lines otherwise",
        choices=("console", "json", "auto"),
    )
    log_level: str = _log(
        "info", "lowest level that is logged", choices=("debug", "info", "warning", "error")
    )
    # Tables of the file, without a flag. None: not set; empty: set, with no rules (any more).
    followups: tuple[Rule, ...] | None = None

    @property
    def token_audiences(self) -> tuple[str, ...]:
        """The audiences, one of which a token must name."""
        return comma_separated(self.token_audience)

    @property
    def websocket_host(self) -> str:
        """The address to listen on for WebSocket."""
        return self.ws_host or self.host

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        """The origins of `ws_origins`; none: pages that this machine serves."""
        return () if self.ws_origins is None else comma_separated(self.ws_origins)

    @property
    def class_limits(self) -> dict[str, tuple[int, str]]:
        """The limits of `class_sessions`, by class."""
        return class_limits(self.class_sessions)

    @property
    def shard_count(self) -> int:
        """The number of shards that users are distributed over."""
        return self.shards or (redis_url.CLUSTER_SHARDS if redis_url.is_cluster(self.redis) else 1)

    @property
    def database(self) -> int:
        """The number of the Redis database."""
        return redis_url.database(self.redis)

    @property
    def shared(self) -> str:
        """The settings that all nodes should share, as ``name=value`` separated by spaces."""
        return " ".join(f"{name}={getattr(self, name)}" for name in _SHARED)

    def clamp_idle_timeout(self, wish: float | None = None) -> float:
        """Return the idle time-out in seconds for a client that requests `wish` (None: the server's default).

        If `idle_timeout` itself lies outside [`min_idle_timeout`, `max_idle_timeout`], it extends the range.
        """
        if wish is None:
            return self.idle_timeout
        low = min(self.min_idle_timeout, self.idle_timeout)
        return max(low, min(wish, max(self.max_idle_timeout, self.idle_timeout)))


def _specs() -> dict[str, SettingField]:
    hints = get_type_hints(Settings)
    return {
        f.name: SettingField(
            f.name, (get_args(hints[f.name]) or (hints[f.name],))[0], f.default, **f.metadata
        )
        for f in dataclasses.fields(Settings)
        if f.metadata
    }


FIELDS = _specs()
