"""The fields of the settings: each with its unit, its bounds and one line of help.

Flags, variables and file keys are derived from the names here; `presence.config` loads the values. The rules
of follow-ups are in the file only: see `presence.rules`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from presence.rules import Rule
from presence.store import address

VARIABLE_PREFIX = "PRESENCE_"
_DAY_S = 86_400


def _host(text: str) -> None:
    if not text.isprintable() or " " in text:
        raise ValueError("must be a host name or an address")


def _prefix(text: str) -> None:
    # Braces would move the cluster's hash tag from the shard to the prefix.
    if not text.isprintable() or any(c in "{}" or c.isspace() for c in text):
        raise ValueError("must not hold braces, white space or control characters")


def _address(text: str) -> None:
    host, colon, port = text.rpartition(":")
    _host(host)
    if not (host and colon and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("must be HOST:PORT")


def _redis_url(text: str) -> None:
    address.parse(text)


def _setting(
    default: object,
    help_text: str,
    *,
    unit: str = "",
    bounds: tuple[float, float] | None = None,
    choices: tuple[str, ...] = (),
    form: Callable[[str], None] | None = None,
) -> Any:
    """Declare a field of `Settings`: `bounds` are inclusive, `form` raises ValueError with what is wrong."""
    metadata = {"help": help_text, "unit": unit, "bounds": bounds, "choices": choices, "form": form}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an operator may set. `presence.config.load` checks values; the constructor takes any."""

    host: str = _setting("127.0.0.1", "address to listen on", form=_host)
    port: int = _setting(7400, "TCP port to listen on; 0 picks one", bounds=(0, 65535))
    workers: int = _setting(1, "worker processes that share the port", bounds=(1, 256))
    redis: str | None = _setting(
        None,
        "redis://, rediss://, unix:// or redis+cluster:// URL; without it, serve starts one of its own",
        form=_redis_url,
    )
    prefix: str = _setting("presence", "what every key in Redis begins with", form=_prefix)
    shards: int = _setting(
        0, "shards that the users are spread over; 0 is 1, on a Redis Cluster 16", bounds=(0, 16384)
    )
    data_dir: Path | None = _setting(  # noqa: RUF009 - declares a field, as dataclasses.field does
        None, "directory in which serve's own Redis keeps its data; without it, in memory only"
    )
    idle_timeout: float = _setting(
        30.0, "silence after which a session has ended", unit="s", bounds=(0.1, _DAY_S)
    )
    min_idle_timeout: float = _setting(
        5.0, "shortest idle time-out that a client may ask for", unit="s", bounds=(0.1, _DAY_S)
    )
    max_idle_timeout: float = _setting(
        300.0, "longest idle time-out that a client may ask for", unit="s", bounds=(0.1, _DAY_S)
    )
    tick: float = _setting(1.0, "how often deadlines are looked at", unit="s", bounds=(0.05, 60))
    disconnect_grace: float = _setting(
        5.0, "time to return after a lost connection before the user is offline", unit="s", bounds=(0, _DAY_S)
    )
    lease: float = _setting(
        10.0,
        "silence towards Redis after which other nodes take nothing more from this one; after as long and "
        "idle_timeout its users are offline",
        unit="s",
        bounds=(0.5, 3600),
    )
    login_timeout: float = _setting(
        5.0, "time from the accept to a complete login", unit="s", bounds=(0.1, 300)
    )
    drain_timeout: float = _setting(10.0, "time that a stop may take", unit="s", bounds=(0, 3600))
    max_connections: int = _setting(
        0,
        "connections at once, of each worker; 0 derives it from the limit on open files",
        bounds=(0, 10_000_000),
    )
    accept_rate: int = _setting(
        10_000,
        "connections that each worker accepts in the long run; beyond, busy",
        unit="1/s",
        bounds=(1, 10**6),
    )
    accept_burst: int = _setting(20_000, "and how many at once", bounds=(1, 10**7))
    login_rate: int = _setting(
        5_000, "logins that each worker grants in the long run; beyond, busy", unit="1/s", bounds=(1, 10**6)
    )
    login_burst: int = _setting(20_000, "and how many at once", bounds=(1, 10**7))
    max_sessions: int = _setting(8, "sessions of one user at once", bounds=(1, 64))
    session_policy: str = _setting(
        "oldest", "whom a login beyond max_sessions costs its session", choices=("oldest", "newest")
    )
    away_after: float = _setting(
        0.0,
        "time with nothing but keepalives after which a session is away; 0: never",
        unit="s",
        bounds=(0, _DAY_S),
    )
    max_watches: int = _setting(1000, "users that one connection may watch", bounds=(1, 10**6))
    flap_returns: int = _setting(
        6,
        "returns of a device after lost connections, as one worker sees them, beyond which its next grace is "
        "doubled; 0: never",
        unit="1/min",
        bounds=(0, 1000),
    )
    max_grace: float = _setting(60.0, "and up to how long", unit="s", bounds=(0, _DAY_S))
    outbox_items: int = _setting(
        0,
        "changes that may wait for Redis, of each worker; 0 is 2 per connection, at least 100,000",
        bounds=(0, 100_000_000),
    )
    outbox_bytes: int = _setting(
        0,
        "memory that these may take, roughly; 0 is 512 a change",
        unit="bytes",
        bounds=(0, 2**40),
    )
    unsent_bytes: int = _setting(
        65_536,
        "unsent bytes, beside one packet, after which a slow client is closed",
        unit="bytes",
        bounds=(1024, 2**30),
    )
    unsent_timeout: float = _setting(
        10.0, "time that unsent bytes may wait before a slow client is closed", unit="s", bounds=(0.1, 3600)
    )
    batch_window_ms: int = _setting(
        100,
        "time in which keepalives that want no answer are gathered; the default yields to a quarter of tick",
        unit="ms",
        bounds=(0, 15_000),
    )
    stall_guard: bool = _setting(True, "credit sessions with the time in which the server was stalled")
    stream_maxlen: int = _setting(
        1_000_000, "events kept in each shard's stream, roughly", unit="events", bounds=(1, 10**12)
    )
    seen_retention_days: int = _setting(
        30, "how long it is remembered when an offline user was last seen", unit="days", bounds=(1, 36_500)
    )
    admin: str = _setting(
        "127.0.0.1:7480", "HTTP address for operators; comes later, none is served yet", form=_address
    )
    no_admin: bool = _setting(False, "serve no HTTP for operators")
    insecure: bool = _setting(False, "allow what is only safe on a trusted network; no effect yet")
    log_format: str = _setting(
        "auto", "auto is console on a terminal, JSON lines otherwise", choices=("console", "json", "auto")
    )
    log_level: str = _setting(
        "info", "least severe level that is written", choices=("debug", "info", "warning", "error")
    )
    # Tables of the file; no flag could say them. None: not set; empty: set, and there are none (any more).
    followups: tuple[Rule, ...] | None = None

    @property
    def shard_count(self) -> int:
        """How many shards the users are spread over."""
        return self.shards or (address.CLUSTER_SHARDS if address.is_cluster(self.redis) else 1)

    def clamp_idle_timeout(self, wish: float | None = None) -> float:
        """Return the idle time-out in seconds for a client that wishes `wish` (None: the server's own).

        Where `idle_timeout` itself lies outside [`min_idle_timeout`, `max_idle_timeout`], it is the bound.
        """
        if wish is None:
            return self.idle_timeout
        low = min(self.min_idle_timeout, self.idle_timeout)
        return max(low, min(wish, max(self.max_idle_timeout, self.idle_timeout)))


class Spec(NamedTuple):
    """One field of `Settings` as flags, variables and the file see it."""

    name: str
    kind: type
    default: object
    help: str
    unit: str
    bounds: tuple[float, float] | None
    choices: tuple[str, ...]
    form: Callable[[str], None] | None

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The name in the environment."""
        return VARIABLE_PREFIX + self.name.upper()

    def parse(self, raw: object) -> object:
        """Return the value that `raw` means: text from a flag or variable, or a typed value from the file.

        Raises:
            ValueError: what the value must be.
        """
        if raw == "":
            raise ValueError("must not be empty")
        if self.kind is bool:
            return _boolean(raw)
        if self.kind in {int, float}:
            return self._number(raw)
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
        if not low <= value <= high:  # NaN is in no range
            raise ValueError(wanted)
        return value


def _boolean(raw: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    value = words.get(raw.lower()) if isinstance(raw, str) else raw
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004 - one error type for every bad value
    return value


def _specs() -> dict[str, Spec]:
    hints = get_type_hints(Settings)
    return {
        f.name: Spec(f.name, (get_args(hints[f.name]) or (hints[f.name],))[0], f.default, **f.metadata)
        for f in dataclasses.fields(Settings)
        if f.metadata
    }


SPECS = _specs()
