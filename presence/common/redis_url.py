"""Parsing of Redis URLs: one server, or some servers of a cluster.

::

    redis://user:password@host:6379/0        rediss://…?ssl_ca_certs=/path/ca.pem        unix:///path/to.sock
    redis+cluster://user:password@host-a:6379,host-b:6379        rediss+cluster://…?ssl_ca_certs=/path/ca.pem

Names and passwords with special characters are percent-encoded.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

CLUSTER_SHARDS: Final = 16  # default number of shards in a cluster; one server needs only one
_TLS_OPTIONS: Final = (
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)
_VALUES: Final = {
    "ssl_cert_reqs": {"none", "optional", "required"},
    "ssl_check_hostname": {"true", "false", "True", "False"},
}
_CLUSTER: Final = "+cluster"
_TLS_KEY_OPTION: Final = "ssl_password"  # the option of redis-py that must not be shown
_ONE_SERVER: Final = frozenset({"redis", "rediss", "unix"})
_SCHEMES: Final = frozenset({*_ONE_SERVER, f"redis{_CLUSTER}", f"rediss{_CLUSTER}"})


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A parsed URL."""

    url: str
    is_cluster: bool
    seeds: tuple[str, ...]  # plain URLs of the servers that it names, in its order

    @property
    def host(self) -> str:
        """The host of the first server; "" for a Unix socket."""
        return urlsplit(self.seeds[0]).hostname or ""

    def for_server(self, host: str, port: int) -> str:
        """Return the plain URL of another server, with the same user, password and options."""
        return _with_host(self.seeds[0], f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def parse(url: str) -> RedisUrl:
    """Parse a URL.

    Raises:
        ValueError: it is invalid; the message contains no part of it.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # its message would show a part of the URL, which may be the password
        raise ValueError("is not a URL with a valid host and port") from None
    if parts.scheme not in _SCHEMES or url[len(parts.scheme) :][:3] != "://":
        raise ValueError("must begin with redis://, rediss://, unix:// or redis+cluster://")
    if not url.isprintable() or " " in url:
        raise ValueError("must not contain white space or control characters")
    if parts.scheme == "unix" and not parts.path:
        raise ValueError("must name the socket: unix:///path/to/redis.sock")
    is_cluster = parts.scheme.endswith(_CLUSTER)
    if is_cluster and parts.path not in {"", "/", "/0"}:
        raise ValueError("must not name a database: a cluster has only number 0")
    _check_options(parts.query, is_cluster=is_cluster, is_tls=parts.scheme.startswith("rediss"))
    if parts.scheme == "unix":
        return RedisUrl(url, is_cluster=False, seeds=(url,))
    user, at, hosts = parts.netloc.rpartition("@")
    names = hosts.split(",") if is_cluster else [hosts]
    _check_hosts(names, is_cluster=is_cluster)
    if not is_cluster:
        return RedisUrl(url, is_cluster=False, seeds=(url,))
    plain = parts._replace(scheme=parts.scheme.removesuffix(_CLUSTER), path="")
    return RedisUrl(
        url, is_cluster=True, seeds=tuple(urlunsplit(plain._replace(netloc=f"{user}{at}{n}")) for n in names)
    )


def is_cluster(url: str | None) -> bool:
    """Whether a valid URL is that of a Redis Cluster."""
    return url is not None and parse(url).is_cluster


def database(url: str | None) -> int:
    """Return the database number of a URL; 0 without a URL."""
    parts = urlsplit(url or "")
    path = "" if parts.scheme == "unix" else parts.path.lstrip("/")
    number = dict(parse_qsl(parts.query)).get("db", path)
    return int(number) if number.isdecimal() else 0


def user(url: str) -> str:
    """Return the user name in `url`; "" for the default user."""
    return unquote(urlsplit(url).username or "")


def redacted(url: str) -> str:
    """Return `url` with the user's password and that of a TLS key replaced by ``***``."""
    parts = urlsplit(url)
    options = [
        f"{_TLS_KEY_OPTION}=***" if _is_tls_key_option(each) else each for each in parts.query.split("&")
    ]
    if "&".join(options) != parts.query:
        url = urlunsplit(parts._replace(query="&".join(options)))
    if parts.password is None:
        return url
    return _with_host(url, parts.netloc.rpartition("@")[2], f"{parts.username or ''}:***")


def _is_tls_key_option(option: str) -> bool:
    return unquote(option.partition("=")[0]) == _TLS_KEY_OPTION


def _with_host(url: str, host: str, user: str | None = None) -> str:
    parts = urlsplit(url)
    before, at, _ = parts.netloc.rpartition("@")
    if user is not None:
        before, at = user, "@"
    return urlunsplit(parts._replace(netloc=f"{before}{at}{host}"))


def _check_options(query: str, *, is_cluster: bool, is_tls: bool) -> None:
    # redis-py accepts all of its own options here, including the password and time-outs.
    allowed = [*(() if is_cluster else ("db",)), *(_TLS_OPTIONS if is_tls else ())]
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _TLS_OPTIONS and not is_tls:
            raise ValueError(f"must begin with rediss:// to use {name}")
        if name not in allowed:
            names = ", ".join(allowed) or "nothing"
            raise ValueError(f"may have only {names} after the question mark; the password goes before @")
        values = _VALUES.get(name)
        if not value or (values and value not in values) or (name == "db" and not value.isdecimal()):
            raise ValueError(f"must have a valid value for {name}")


def _check_hosts(names: Iterable[str], *, is_cluster: bool) -> None:
    for name in names:
        try:
            parts = urlsplit(f"redis://{name}")
            is_bad = parts.port == 0 or (is_cluster and not parts.hostname)
        except ValueError:
            is_bad = True
        if is_bad:
            raise ValueError("is not a URL with a valid host and port")
